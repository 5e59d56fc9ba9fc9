"""Generates client/inflight_client/_sync from _async: `scripts/unasync.py` writes, `--check` fails on a difference.

A table of words turns asyncio's into those of threads. Where the two need different code, comments in _async say so:
`# sync: CODE` lines replace the line after them, and `# async only` at the end of a statement's first line drops the
statement.
"""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "client" / "inflight_client"
MODULES = ("client", "connection", "encode", "http_transport", "openai_transport", "stream", "transcribe")
WORDS = [  # imports that are not used go away afterwards
    (r"^(from collections\.abc import .*)AsyncGenerator", r"\1Generator, Iterator"),
    (r"^(from inflight_client\.deadline import (?:\w+, )?Deadline)$", r"\1, acquired"),
    (r"\bAsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\[(\w+)\]", r"Iterator[\1]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b(?:async_|a)(?=attempts|encode\b|transcribe\b|fetch_metrics|next\b|clos(e|ing)\b|iter_stream)", ""),
    (r"\bhandle_async_(?=request)", "handle_"),
    (r"\bactive_within_deadline\b", "active"),
    (r"inflight_client\._async\.", "inflight_client._sync."),
    (r"\.async_(?=network|transport)", ".sync_"),
    (r"\basyncio\.Lock\b", "threading.RLock"),
    (r"\basyncio\.Event\b", "threading.Event"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"^import asyncio$", "import threading"),
    # Docstrings.
    (r"\bfor asyncio\b", "for blocking code"),
    (r"The tasks of one event loop share it", "Any number of threads may share it"),
    (r"\basynchronous iterator\b", "iterator"),
    (r"A source that waits must be an asynchronous one\.", "They are read in a thread, so their source may wait."),
    (r"\(by an error or cancelling\)", "(by an error or Ctrl-C)"),
    (r"^( *)by cancelling the task that reads it, ", r"\1"),
    (r"\bcancelling or `", "Ctrl-C or `"),
    (r"\b(an|[Aa])other task\b", r"\1other thread"),
    (r"\bOne task\b", "One thread"),
    (r"\ball tasks\b", "all threads"),
    (r", in one event loop\b", ""),
    (r", for the tasks of one event loop: the one in which it is first used", ", for any number of threads"),
    (r", in its own loop\b", ""),
    (r"any of the loop's\b", "any thread"),
]


def sync_code(name: str) -> str:
    source = (PACKAGE / "_async" / f"{name}.py").read_text()
    code = "\n".join(_replace_words(line) for line in _lines(source))
    header = f"# Generated from _async/{name}.py by scripts/unasync.py; do not edit.\n"
    code = _ruff(header + code + "\n", "check", "--select", "F401,I", "--fix", "--quiet")
    return _ruff(code, "format", "--quiet")


def _lines(source: str) -> list[str]:
    """The lines of the blocking variant, with asyncio's words still in them."""
    lines = source.splitlines()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt | ast.ExceptHandler) and "# async only" in lines[node.lineno - 1]:
            dropped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept: list[str] = []
    replaced = False
    for number, line in enumerate(lines, 1):
        if found := re.fullmatch(r"( *)# sync: (.*)", line):
            kept.append(found[1] + found[2])
            replaced = True
            continue
        if not replaced and number not in dropped:
            kept.append(line)
        replaced = False
    return kept


def _replace_words(line: str) -> str:
    for pattern, word in WORDS:
        line = re.sub(pattern, word, line)
    return line


def _ruff(code: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(PACKAGE / "_sync" / "x.py"), "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    differs = False
    for name in MODULES:
        path, code = PACKAGE / "_sync" / f"{name}.py", sync_code(name)
        if not check:
            path.write_text(code)
        elif path.read_text() != code:
            differs = True
            difference = difflib.unified_diff(path.read_text().splitlines(), code.splitlines(), str(path), "generated")
            print(*difference, sep="\n")
    if differs:
        print("Change _async instead, and run `make sync-client`.", file=sys.stderr)
    return differs


if __name__ == "__main__":
    sys.exit(main())
