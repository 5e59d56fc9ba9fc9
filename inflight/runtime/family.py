"""The processes that an engine has started: none may outlive it, since each may hold the memory of a GPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "INFLIGHT_ENGINE_FAMILY"
"""A variable of the engine's process, and so of all that it starts: orphans, which have another parent, have it too."""
PATIENCE_S = 10.0
"""How long a killed process is waited for: freeing a GPU's memory takes the driver some time."""


def end_descendants() -> None:
    """Kill the children of this process, theirs, and so on; return when they are gone."""
    children: dict[int, list[int]] = {}
    for pid in _all():
        if (found := _state_and_parent(pid)) is not None:
            children.setdefault(found[1], []).append(pid)
    family = [os.getpid()]
    for pid in family:
        family += children.get(pid, [])
    _end(family[1:])


def end_marked(mark: str) -> None:
    """Kill every process that was started with `mark` in MARK; return when they are gone."""
    variable = f"{MARK}={mark}".encode()
    _end([pid for pid in _all() if pid != os.getpid() and variable in _environment(pid)])


def _end(pids: Iterable[int]) -> None:
    left = list(pids)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # it has just ended
    deadline = time.monotonic() + PATIENCE_S
    while (left := [pid for pid in left if _runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.005)


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has just ended, or is somebody else's


def _runs(pid: int) -> bool:
    """A dead process has given back all that it held, though it may stay in the table until its parent looks."""
    found = _state_and_parent(pid)
    return found is not None and found[0] not in "ZX"


def _state_and_parent(pid: int) -> tuple[str, int] | None:
    """The two fields behind the name, which is in brackets and may hold anything (proc(5))."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None  # it has just ended
    return state, int(parent)
