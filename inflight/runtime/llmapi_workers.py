"""The processes that a library has started: none may outlive the engine, since each holds its GPU's memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def end_descendants() -> None:
    """Kill the children of this process, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    for pid in found[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _parent(entry: Path) -> int | None:
    """The second field behind the name, which is in brackets and may hold anything (proc(5))."""
    try:
        return int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None  # it has just ended
