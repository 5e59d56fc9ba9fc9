"""The failpoints that the code has, found in the code itself, so that none can be forgotten."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import inflight.batch


def failpoint_names() -> dict[str, re.Pattern[str]]:
    """What the code calls each, as written there, and a pattern of the names that this comes to."""
    patterns = {}
    for path in sorted(Path(inflight.batch.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint":
                name = node.args[0]
                written = ast.unparse(name)
                if isinstance(name, ast.JoinedStr):
                    patterns[written] = re.compile("".join(map(_pattern, name.values)))
                else:
                    assert isinstance(name, ast.Constant), f"{path}: {written} must be a text"
                    patterns[written] = re.compile(re.escape(str(name.value)))
    return patterns


def _pattern(part: ast.expr) -> str:
    return re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
