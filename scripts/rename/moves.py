"""Move modules of the checkout at the current directory, and rewrite imports, dotted names and paths.

    python scripts/rename/moves.py MAP.json ...

Run it once, behind names.py. It prints what to look at by hand.
"""

from __future__ import annotations

import ast
import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

moves: dict[str, str] = {}
for p in sys.argv[1:]:
    if p.startswith("--"):
        continue
    moves.update(json.loads(Path(p).read_text()).get("modules", {}))
tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.split("\n")
tracked = [t for t in tracked if t and os.path.isfile(t)]


def dotted(path):
    p = path.removeprefix("client/") if path.startswith("client/") else path
    p = p.removesuffix(".py").removesuffix("/__init__")
    return p.replace("/", ".")


for old in list(moves):
    if not os.path.exists(old):
        print("PROBLEM no file", old)
        del moves[old]
    elif moves[old] == old:
        del moves[old]
    elif moves[old] in tracked and moves[old] not in moves:
        print("PROBLEM target exists", old, moves[old])
dup = [n for n, c in collections.Counter(moves.values()).items() if c > 1]
if dup:
    print("PROBLEM same target", dup)
MOD = {dotted(o): dotted(n) for o, n in moves.items() if o.endswith(".py")}
# whole packages
pkgs = collections.defaultdict(set)
members = collections.defaultdict(list)
for t in tracked:
    if t.endswith(".py") and not t.endswith("__init__.py"):
        members[os.path.dirname(t)].append(t)
PKG: dict[str, str] = {}
for d, files in members.items():
    targets = {os.path.dirname(moves.get(f, f)) for f in files}
    subs = [t for t in tracked if t.startswith(d + "/") and t.endswith(".py") and not t.endswith("__init__.py")]
    targets_all = set()
    for f in subs:
        n = moves.get(f, f)
        rest = os.path.relpath(f, d).count("/")
        base = os.path.dirname(n)
        for _ in range(rest):
            base = os.path.dirname(base)
        targets_all.add(base)
    if len(targets_all) == 1 and d not in targets_all:
        PKG[d] = targets_all.pop()
for o, n in PKG.items():
    MOD.setdefault(dotted(o), dotted(n))
    init = o + "/__init__.py"
    if init in tracked and init not in moves:
        moves[init] = n + "/__init__.py"
print("packages:", PKG)
ALLMODS = {dotted(t) for t in tracked if t.endswith(".py")}
PATHS = dict(moves.items())
for o, n in PKG.items():
    PATHS[o] = n
dot_re = (
    re.compile(r"(?<![\w.])(" + "|".join(re.escape(k) for k in sorted(MOD, key=len, reverse=True)) + r")(?!\w)")
    if MOD
    else None
)
path_re = re.compile(
    r"(?<![\w])(" + "|".join(re.escape(k) for k in sorted(PATHS, key=len, reverse=True)) + r")(?![\w])"
)
rel_re = (
    re.compile(
        r"(?<![\w/])("
        + "|".join(
            re.escape(k.removeprefix("client/"))
            for k in sorted(PATHS, key=len, reverse=True)
            if k.startswith("client/")
        )
        + r")(?![\w])"
    )
    if any(k.startswith("client/") for k in PATHS)
    else None
)


def text_sub(s):
    def d(m):
        # a longer module name below a package is in MOD itself; else a module that stays below a moved package name
        return MOD[m.group(1)]

    if dot_re:
        s = dot_re.sub(d, s)
    return path_re.sub(lambda m: PATHS[m.group(1)], s)


LEFT = []


def rewrite_py(path):
    src = Path(path).read_text()
    tree = ast.parse(src)
    lines = src.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()) + 1)
    data = src.encode()

    def off(line, col):
        return starts[line - 1] + col

    edits = []
    ranges = []
    me = dotted(path)
    is_pkg = path.endswith("__init__.py")
    renames: dict[str, str] = {}
    bound = (
        {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
        | {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))}
    )
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            mod = n.module or ""
            if n.level:
                parts = me.split(".")
                if not is_pkg:
                    parts = parts[:-1]
                parts = parts[: len(parts) - (n.level - 1)]
                mod = ".".join(parts + ([mod] if mod else []))
            groups = collections.OrderedDict()
            changed = bool(n.level) and False
            for a in n.names:
                full = f"{mod}.{a.name}"
                if full in MOD:  # a module
                    parent, _, leaf = MOD[full].rpartition(".")
                    asname = a.asname
                    if leaf != a.name and asname is None:
                        if leaf in bound:
                            asname = a.name
                            LEFT.append(f"alias {path}:{n.lineno} {leaf} as {a.name}")
                        else:
                            renames[a.name] = leaf
                    changed = True
                    groups.setdefault(parent, []).append((leaf, asname))
                else:
                    new = MOD.get(mod, mod)
                    if new != mod:
                        changed = True
                    groups.setdefault(new, []).append((a.name, a.asname))
            if n.level and (changed or me in MOD):
                changed = True
            if changed:
                indent = " " * n.col_offset
                out = []
                for m, names in groups.items():
                    out.append(
                        f"from {m} import "
                        + ", ".join(x + (f" as {y}" if y and y != x else (f" as {y}" if y else "")) for x, y in names)
                    )
                data[off(n.end_lineno, n.end_col_offset) : starts[n.end_lineno] - 1].decode()
                text = ("\n" + indent).join(out)
                seg = data[off(n.lineno, n.col_offset) : off(n.end_lineno, n.end_col_offset)].decode()
                if "#" in seg:
                    LEFT.append(f"comment lost {path}:{n.lineno}: {seg!r}")
                edits.append((off(n.lineno, n.col_offset), off(n.end_lineno, n.end_col_offset), text))
                ranges.append((off(n.lineno, n.col_offset), off(n.end_lineno, n.end_col_offset)))
            else:
                ranges.append((off(n.lineno, n.col_offset), off(n.end_lineno, n.end_col_offset)))
    for n in ast.walk(tree):
        if isinstance(n, ast.Name) and n.id in renames:
            s = off(n.lineno, n.col_offset)
            if data[s : s + len(n.id)] != n.id.encode():
                LEFT.append(f"place {path}:{n.lineno} {n.id}")
                continue
            edits.append((s, s + len(n.id), renames[n.id]))
    edits.sort()
    out = []
    pos = 0
    # pieces between the edits and import ranges get the text substitution
    marks = sorted(edits + [(a, b, None) for a, b in ranges if not any(e[0] == a for e in edits)], key=lambda e: e[0])
    for a, b, text in marks:
        if a < pos:
            continue
        out.append(text_sub(data[pos:a].decode()))
        out.append(data[a:b].decode() if text is None else text)
        pos = b
    out.append(text_sub(data[pos:].decode()))
    new = "".join(out)
    if new != src:
        Path(path).write_text(new)


for t in tracked:
    if t.endswith(".py"):
        rewrite_py(t)
    elif not t.endswith((".png", ".svg", ".lock")) or t == "requirements.lock":
        try:
            s = Path(t).read_text()
        except UnicodeDecodeError:
            continue
        n = text_sub(s)
        if n != s:
            Path(t).write_text(n)

# two steps, since a target may be another one's source
for o in moves:
    subprocess.run(["git", "mv", "-k", o, o + ".moving"], check=True)
for o, n in moves.items():
    if not os.path.exists(o + ".moving"):
        os.rename(o, o + ".moving")
    os.makedirs(os.path.dirname(n) or ".", exist_ok=True)
    os.rename(o + ".moving", n)
subprocess.run(["git", "add", "-A"], check=True)
# __init__ where the siblings have one
for n in sorted(set(moves.values())):
    d = os.path.dirname(n)
    while d and d not in ("client", "tests"):
        top = d.split("/")[0]
        if (
            n.endswith(".py")
            and top in ("inflight", "client", "build_engines", "loadtests", "tests", "benchmarks")
            and not os.path.exists(d + "/__init__.py")
        ) and (top != "tests" or any(t == os.path.dirname(d) + "/__init__.py" for t in tracked)):
            Path(d + "/__init__.py").write_text("")
            print("new package", d)
        d = os.path.dirname(d)
for o in sorted({os.path.dirname(o) for o in moves}, reverse=True):
    if os.path.isdir(o):
        rest = [f for f in os.listdir(o) if f != "__pycache__"]
        if rest == ["__init__.py"]:
            os.remove(o + "/__init__.py")
            print("emptied", o)
            rest = []
        if not rest:
            import shutil

            shutil.rmtree(o)
subprocess.run(["git", "add", "-A"], check=True)
for left in LEFT:
    print("LEFT", left)
for n in moves.values():
    o = next(k for k, v in moves.items() if v == n)
    if n.endswith(".py") and o.count("/") != n.count("/") and "__file__" in Path(n).read_text():
        print("DEPTH", o, n)
