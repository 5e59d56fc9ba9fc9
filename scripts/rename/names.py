"""Rename symbols and members of the checkout at the current directory, by mypy's own analysis.

    .venv/bin/python scripts/rename/names.py [--dry] MAP.json ...

It prints names that it does not find (PROBLEM) and places to look at by hand (MANUAL).
"""

from __future__ import annotations

import ast
import collections
import json
import re
import sys
from pathlib import Path

import mypy
from mypy import build, nodes, types
from mypy.main import process_options


def traverser():
    """mypy's own traverser as ordinary classes: those that ship are compiled and can't be subclassed."""
    source = Path(mypy.__file__).with_name("traverser.py").read_text()
    source = re.sub(r"([\w.\[\]]+)\.accept\(self\)", r"self.walk(\1)", source)
    source = source.replace("@trait\n", "").replace("@mypyc_attr(allow_interpreted_subclasses=True)\n", "")
    walk = """class TraverserVisitor:
    def walk(self, node):
        visit = getattr(self, "visit_" + SNAKE(type(node).__name__), None)
        return visit(node) if visit is not None else None
"""
    source = re.sub(r"class TraverserVisitor\(.*?\):", walk, source, count=1)
    names = {"SNAKE": lambda name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(), "__name__": "traverser"}
    exec(compile(source, "traverser.py", "exec", dont_inherit=True), names)
    return names["ExtendedTraverserVisitor"]


ExtendedTraverserVisitor = traverser()

DRY = "--dry" in sys.argv
maps = [json.loads(Path(p).read_text()) for p in sys.argv[1:] if not p.startswith("--")]
SYMBOLS: dict[str, str] = {}
MEMBERS: dict[tuple[str, str], str] = {}
for m in maps:
    for key, new in m.get("symbols", {}).items():
        mod, name = key.split(":")
        if "." in name:
            MEMBERS[(mod, name)] = new
        else:
            SYMBOLS[f"{mod}.{name}"] = new
    for key, new in m.get("members", {}).items():
        mod, name = key.split(":")
        if "." not in name:
            SYMBOLS[f"{mod}.{name}"] = new
        else:
            MEMBERS[(mod, name)] = new

sources, options = process_options([])
options.export_types = True
options.preserve_asts = True
options.incremental = False
options.cache_dir = "/dev/null"
result = build.build(sources, options)
print("mypy errors before:", len(result.errors))
for e in result.errors[:5]:
    print("  ", e)
FILES = {n: f for n, f in result.files.items() if f.path and not f.path.startswith("/") and ".venv" not in f.path}
TYPES = result.types
problems: list[str] = []


# modules by dotted name: the map uses inflight_client.x, build_engines.x, tests.x
def module(name: str):
    return result.files.get(name)


ATTR: dict[tuple[str, str], str] = {}  # (class fullname, attr) -> new
PARAM: dict[int, str] = {}  # id(Var) -> new
PARAM_OF: dict[str, dict[str, str]] = collections.defaultdict(dict)  # function fullname -> {old: new}
KEEP = []


def functions(node):
    if isinstance(node, nodes.Decorator):
        return [node.func]
    if isinstance(node, nodes.OverloadedFuncDef):
        out = []
        for i in node.items:
            out += functions(i)
        if node.impl:
            out += functions(node.impl)
        return out
    if isinstance(node, nodes.FuncDef):
        return [node]
    return []


def add_param(func, old, new):
    found = False
    for a in func.arguments:
        if a.variable.name == old:
            PARAM[id(a.variable)] = new
            KEEP.append(a.variable)
            found = True
    if found:
        PARAM_OF[func.fullname][old] = new
    return found


for (mod, dotted), new in MEMBERS.items():
    f = module(mod)
    parts = dotted.split(".")
    if f is None:
        problems.append(f"no module {mod} ({dotted})")
        continue
    sym = f.names.get(parts[0])
    if sym is None or sym.node is None:
        problems.append(f"no {mod}:{parts[0]}")
        continue
    node = sym.node
    if isinstance(node, nodes.TypeInfo):
        info = node
        if len(parts) == 2:
            hit = False
            if parts[1] in info.names:
                ATTR[(info.fullname, parts[1])] = new
                hit = True
            init = info.names.get("__init__")
            if init and init.node is not None and init.node.fullname.startswith(info.fullname + "."):
                for fn in functions(init.node):
                    hit |= add_param(fn, parts[1], new)
            if not hit:
                problems.append(f"no member {mod}:{dotted}")
        elif len(parts) == 3:
            meth = info.names.get(parts[1])
            ok = False
            if meth and meth.node:
                for fn in functions(meth.node):
                    ok |= add_param(fn, parts[2], new)
            if not ok:
                problems.append(f"no parameter {mod}:{dotted}")
    else:
        ok = False
        for fn in functions(node):
            ok |= add_param(fn, parts[1], new)
        if not ok:
            problems.append(f"no parameter {mod}:{dotted}")
for full in SYMBOLS:
    mod, _, name = full.rpartition(".")
    f = module(mod)
    if f is None:
        problems.append(f"no module {mod} ({name})")
    elif name not in f.names:
        problems.append(f"no symbol {mod}:{name}")
    elif SYMBOLS[full] in f.names:
        problems.append(f"COLLISION in {mod}: {name} -> {SYMBOLS[full]} exists")

# subclasses of a class with a renamed member
INFOS = []


def collect(names, seen):
    for s in names.values():
        n = s.node
        if isinstance(n, nodes.TypeInfo) and id(n) not in seen:
            seen.add(id(n))
            INFOS.append(n)
            collect(n.names, seen)


seen: set[int] = set()
for f in FILES.values():
    collect(f.names, seen)

    class Local(ExtendedTraverserVisitor):
        def visit_class_def(self, o):
            if o.info and id(o.info) not in seen:
                seen.add(id(o.info))
                INFOS.append(o.info)
            super().visit_class_def(o)

    Local().walk(f)
for info in INFOS:
    for attr in list(info.names):
        for base in info.mro[1:]:
            if (base.fullname, attr) in ATTR:
                ATTR.setdefault((info.fullname, attr), ATTR[(base.fullname, attr)])


def attr_new(info, attr):
    c = info.get_containing_type_info(attr)
    if c is not None:
        return ATTR.get((c.fullname, attr))
    return None


def infos_of(t):
    t = types.get_proper_type(t)
    if isinstance(t, types.Instance):
        return [t.type]
    if isinstance(t, types.UnionType):
        return [i for x in t.items for i in infos_of(x)]
    if isinstance(t, types.TypeVarType):
        return infos_of(t.upper_bound)
    if isinstance(t, types.TupleType):
        return [t.partial_fallback.type]
    if isinstance(t, types.LiteralType):
        return [t.fallback.type]
    if isinstance(t, types.TypeType):
        return infos_of(t.item)
    if isinstance(t, types.CallableType):
        if t.is_type_obj():
            return [t.type_object()]
        return []
    if isinstance(t, types.Overloaded):
        return infos_of(t.items[0])
    return []


EDITS: dict[str, set[tuple[int, int, str, str]]] = collections.defaultdict(set)  # path -> (line, col, old, new)
LINES: dict[str, list[bytes]] = {}
MANUAL: list[str] = []


def edit(path, line, col, old, new):
    lines = LINES[path]
    o = old.encode()
    if line - 1 < len(lines) and lines[line - 1][col : col + len(o)] == o:
        EDITS[path].add((line, col, old, new))
        return
    # inside an f-string: the place is wrong. Look for the one place near.
    pat = re.compile(rb"(?<![\w])" + re.escape(o) + rb"(?![\w])")
    for at in range(line, min(line + 12, len(lines) + 1)):
        ms = list(pat.finditer(lines[at - 1]))
        ms = [m for m in ms if b"{" in lines[at - 1][: m.start()]]
        if len(ms) >= 1:
            for m in ms:
                EDITS[path].add((at, m.start(), old, new))
            MANUAL.append(f"guessed {path}:{at} {old} -> {new}")
            return
    MANUAL.append(f"NOT PLACED {path}:{line}:{col} {old} -> {new}")


class Walk(ExtendedTraverserVisitor):
    def __init__(self, path, tree):
        self.path = path
        self.classes = []
        self.calls = {}
        for n in ast.walk(tree):
            if isinstance(n, ast.Call):
                self.calls[(n.lineno, n.col_offset, n.end_lineno, n.end_col_offset)] = n
        self.tree = tree

    def visit_class_def(self, o):
        self.classes.append(o.info)
        super().visit_class_def(o)
        self.classes.pop()
        new = SYMBOLS.get(o.fullname)
        if new:
            self.definition(o, rb"class\s+", o.name, new)

    def definition(self, o, prefix, name, new):
        lines = LINES[self.path]
        pat = re.compile(prefix + name.encode() + rb"(?!\w)")
        for at in range(o.line, min(o.line + 40, len(lines)) + 1):
            m = pat.search(lines[at - 1])
            if m:
                edit(self.path, at, m.end() - len(name), name, new)
                return
        MANUAL.append(f"no definition found {self.path}:{o.line} {name}")

    def visit_func_def(self, o):
        new = SYMBOLS.get(o.fullname)
        if o.info:
            new = new or ATTR.get((o.info.fullname, o.name))
        if new:
            self.definition(o, rb"def\s+", o.name, new)
        for a in o.arguments:
            n = PARAM.get(id(a.variable))
            if n:
                edit(self.path, a.line, a.column, a.variable.name, n) if LINES[self.path][a.line - 1][
                    a.column : a.column + len(a.variable.name)
                ] == a.variable.name.encode() else self.param(o, a, n)
        super().visit_func_def(o)

    def param(self, o, a, n):
        pat = re.compile(rb"(?<![\w.])" + a.variable.name.encode() + rb"(?=\s*[:=,)])")
        for at in range(a.line, a.line + 2):
            m = pat.search(LINES[self.path][at - 1])
            if m:
                edit(self.path, at, m.start(), a.variable.name, n)
                return
        MANUAL.append(f"no parameter found {self.path}:{a.line} {a.variable.name}")

    def visit_lambda_expr(self, o):
        super().visit_lambda_expr(o)

    def visit_name_expr(self, o):
        super().visit_name_expr(o)
        new = SYMBOLS.get(o.fullname) if "." in (o.fullname or "") else None
        if new and o.name == o.fullname.rpartition(".")[2]:
            edit(self.path, o.line, o.column, o.name, new)
            return
        if o.node is not None and id(o.node) in PARAM:
            edit(self.path, o.line, o.column, o.name, PARAM[id(o.node)])
            return
        # a class variable's declaration
        if (
            isinstance(o.node, nodes.Var)
            and o.node.info
            and self.classes
            and self.classes[-1] is o.node.info
            and o.node.name == o.name
        ):
            new = ATTR.get((o.node.info.fullname, o.name))
            if new:
                edit(self.path, o.line, o.column, o.name, new)

    def visit_member_expr(self, o):
        super().visit_member_expr(o)
        new = None
        if isinstance(o.expr, nodes.RefExpr) and isinstance(o.expr.node, nodes.MypyFile):
            new = SYMBOLS.get(o.expr.node.fullname + "." + o.name)
        else:
            infos = []
            if isinstance(o.expr, nodes.RefExpr) and isinstance(o.expr.node, nodes.TypeInfo):
                infos = [o.expr.node]
            t = TYPES.get(o.expr)
            if t is not None:
                infos += infos_of(t)
            if not infos and isinstance(o.expr, nodes.NameExpr) and o.expr.name in ("self", "cls") and self.classes:
                infos = [self.classes[-1]]
            for i in infos:
                new = attr_new(i, o.name)
                if new:
                    break
        if new:
            edit(self.path, o.end_line, o.end_column - len(o.name.encode()), o.name, new)

    def visit_super_expr(self, o):
        super().visit_super_expr(o)
        if o.info:
            for b in o.info.mro[1:]:
                new = ATTR.get((b.fullname, o.name))
                if new:
                    edit(self.path, o.end_line, o.end_column - len(o.name.encode()), o.name, new)
                    break

    def visit_call_expr(self, o):
        super().visit_call_expr(o)
        names = [n for n in o.arg_names if n]
        callee = o.callee
        node = callee.node if isinstance(callee, nodes.RefExpr) else None
        if isinstance(callee, nodes.IndexExpr) and isinstance(callee.base, nodes.RefExpr):
            node = callee.base.node
        if isinstance(callee, nodes.MemberExpr) and node is None:
            t = TYPES.get(callee.expr)
            for i in infos_of(t) if t is not None else []:
                s = i.get(callee.name)
                if s and s.node:
                    node = s.node
                    break
        call = self.calls.get((o.line, o.column, o.end_line, o.end_column))
        renames: dict[str, str] = {}

        def of_class(info):
            for b in info.mro:
                for (c, a), n in ATTR.items():
                    if c == b.fullname:
                        renames.setdefault(a, n)
            i = info.get("__init__")
            if i and i.node:
                for fn in functions(i.node):
                    renames.update(PARAM_OF.get(fn.fullname, {}))

        cname = getattr(callee, "name", "")
        if isinstance(node, nodes.TypeInfo):
            of_class(node)
        elif isinstance(node, nodes.TypeAlias):
            for i in infos_of(node.target):
                of_class(i)
        elif cname == "cls" and self.classes:
            of_class(self.classes[-1])
        elif node is not None and not isinstance(node, nodes.Var):
            for fn in functions(node):
                renames.update(PARAM_OF.get(fn.fullname, {}))
        if cname == "replace" and o.args:
            t = TYPES.get(o.args[0])
            for i in infos_of(t) if t is not None else []:
                of_class(i)
        if cname == "partial" and o.args and isinstance(o.args[0], nodes.RefExpr):
            n0 = o.args[0].node
            if isinstance(n0, nodes.TypeInfo):
                of_class(n0)
            elif n0 is not None:
                for fn in functions(n0):
                    renames.update(PARAM_OF.get(fn.fullname, {}))
        if (not renames and isinstance(node, nodes.Var)) or (not renames and node is None):
            t = TYPES.get(callee)
            for i in infos_of(t) if t is not None else []:
                if isinstance(types.get_proper_type(t), types.CallableType):
                    of_class(i)
        if renames and names and call is not None:
            for k in call.keywords:
                if k.arg in renames:
                    edit(self.path, k.lineno, k.col_offset, k.arg, renames[k.arg])
        elif renames and call is None and any(n in renames for n in names):
            MANUAL.append(f"call not found {self.path}:{o.line} {[n for n in names if n in renames]}")
        # getattr/setattr(obj, "name")
        if (
            cname in ("getattr", "setattr", "delattr", "hasattr", "object", "setitem")
            and len(o.args) >= 2
            and isinstance(o.args[1], nodes.StrExpr)
        ):
            a0 = o.args[0]
            new = None
            s = o.args[1]
            if isinstance(a0, nodes.RefExpr) and isinstance(a0.node, nodes.MypyFile):
                new = SYMBOLS.get(a0.node.fullname + "." + s.value)
            else:
                inf = [a0.node] if isinstance(a0, nodes.RefExpr) and isinstance(a0.node, nodes.TypeInfo) else []
                t = TYPES.get(a0)
                if t is not None:
                    inf += infos_of(t)
                for i in inf:
                    new = new or attr_new(i, s.value)
            if new:
                edit(self.path, s.line, s.column + 1, s.value, new)
        if cname == "setattr" and o.args and isinstance(o.args[0], nodes.StrExpr):
            full = o.args[0].value
            if full in SYMBOLS:
                old = full.rpartition(".")[2]
                edit(self.path, o.args[0].line, o.args[0].column + 1 + len(full) - len(old), old, SYMBOLS[full])

    def visit_class_pattern(self, o):
        super().visit_class_pattern(o)
        node = o.class_ref.node
        if isinstance(node, nodes.TypeInfo):
            for k in o.keyword_keys:
                new = attr_new(node, k)
                if new:
                    MANUAL.append(f"pattern {self.path}:{o.line} {k} -> {new}")


def type_exprs(tree, f, path):
    """Annotations are not in mypy's expression walk: names in them by the module's own scope."""
    table = f.names

    def resolve(name):
        s = table.get(name)
        return s.node.fullname if s and s.node is not None else None

    # annotations, also of TYPE_CHECKING imports, with ast
    def names_in(annotation):
        for n in ast.walk(annotation):
            if isinstance(n, ast.Name):
                yield n.lineno, n.col_offset, n.id
            elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name):
                base = table.get(n.value.id)
                if base and isinstance(base.node, nodes.MypyFile):
                    new = SYMBOLS.get(base.node.fullname + "." + n.attr)
                    if new:
                        edit(path, n.end_lineno, n.end_col_offset - len(n.attr.encode()), n.attr, new)
            elif isinstance(n, ast.Constant) and isinstance(n.value, str):
                for m in re.finditer(r"[A-Za-z_]\w*", n.value):
                    full = resolve(m.group()) or f"{f.fullname}.{m.group()}"
                    if full in SYMBOLS:
                        edit(path, n.lineno, n.col_offset + 1 + m.start(), m.group(), SYMBOLS[full])

    for n in ast.walk(tree):
        anns = []
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            a = n.args
            anns += [
                x.annotation for x in a.posonlyargs + a.args + a.kwonlyargs + [a.vararg, a.kwarg] if x and x.annotation
            ]
            if n.returns:
                anns.append(n.returns)
        elif isinstance(n, ast.AnnAssign):
            anns.append(n.annotation)
        elif isinstance(n, ast.Call):
            fn = n.func.id if isinstance(n.func, ast.Name) else getattr(n.func, "attr", "")
            if fn == "cast" and n.args:
                anns.append(n.args[0])
        elif isinstance(n, (ast.Assign,)):
            anns.append(n.value)  # aliases: names of module-level symbols only
        elif isinstance(n, ast.ClassDef):
            anns += n.bases + [k.value for k in n.keywords]
        elif isinstance(n, ast.Subscript):
            anns.append(n)
        elif isinstance(n, (ast.ExceptHandler,)) and n.type:
            anns.append(n.type)
        for ann in anns:
            for line, col, name in names_in(ann):
                # A function's local of the same name is another thing.
                full = resolve(name)
                if full in SYMBOLS and not shadowed(tree, name, line):
                    edit(path, line, col, name, SYMBOLS[full])


def shadowed(tree, name, line):
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.lineno <= line <= n.end_lineno:
            args = n.args
            if any(
                x and x.arg == name for x in args.posonlyargs + args.args + args.kwonlyargs + [args.vararg, args.kwarg]
            ):
                return True
            for m in ast.walk(n):
                if isinstance(m, ast.Name) and isinstance(m.ctx, ast.Store) and m.id == name:
                    return True
    return False


def imports(tree, f, path):
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            mod = n.module or ""
            if n.level:
                parts = f.fullname.split(".")
                if not path.endswith("__init__.py"):
                    parts = parts[:-1]
                parts = parts[: len(parts) - (n.level - 1)]
                mod = ".".join(parts + ([mod] if mod else []))
            for a in n.names:
                full = f"{mod}.{a.name}"
                target = full
                # re-exported through a package
                mf = module(mod)
                if full not in SYMBOLS and mf is not None:
                    s = mf.names.get(a.name)
                    if s and s.node is not None and getattr(s.node, "fullname", None) in SYMBOLS:
                        target = s.node.fullname
                if target in SYMBOLS and a.name == target.rpartition(".")[2]:
                    edit(path, a.lineno, a.col_offset, a.name, SYMBOLS[target])
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets):
            for c in ast.walk(n.value):
                if isinstance(c, ast.Constant) and isinstance(c.value, str):
                    s = f.names.get(c.value)
                    full = s.node.fullname if s and s.node is not None else None
                    if full in SYMBOLS:
                        edit(path, c.lineno, c.col_offset + 1, c.value, SYMBOLS[full])


for f in FILES.values():
    path = f.path
    data = Path(path).read_bytes()
    LINES[path] = data.split(b"\n")
    tree = ast.parse(data)
    Walk(path, tree).walk(f)
    type_exprs(tree, f, path)
    imports(tree, f, path)

count = 0
for path, edits in EDITS.items():
    lines = LINES[path]
    for line, col, old, new in sorted(edits, reverse=True):
        text = lines[line - 1]
        assert text[col : col + len(old)] == old.encode(), (path, line, col, old)
        lines[line - 1] = text[:col] + new.encode() + text[col + len(old) :]
        count += 1
    if not DRY:
        Path(path).write_bytes(b"\n".join(lines))

# Text in backticks, where the old name is unique among the names in code
camel = {full.rpartition(".")[2]: new for full, new in SYMBOLS.items()}
dup = collections.Counter(full.rpartition(".")[2] for full in SYMBOLS)
all_classes = collections.Counter(i.name for i in INFOS)
if not DRY:
    import subprocess

    for p in subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml", "*.pbtxt"], capture_output=True, text=True
    ).stdout.split():
        text = Path(p).read_text()

        def sub(m):
            n = m.group(1)
            if n in camel and dup[n] == 1 and n[0].isupper() and all_classes[n] <= 1:
                return m.group(0).replace(n, camel[n], 1)
            return m.group(0)

        out = re.sub(r"`([A-Z]\w+)(?=[`.(\[])", sub, text)
        if out != text:
            Path(p).write_text(out)
print("edits:", count, "files:", len(EDITS))
for p in problems:
    print("PROBLEM", p)
for p in MANUAL:
    print("MANUAL", p)
