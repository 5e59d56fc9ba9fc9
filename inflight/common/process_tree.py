"""Ends the processes that an engine has started: each may hold the memory of a GPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

TAG_VARIABLE = "INFLIGHT_PROCESS_TAG"
"""A variable in the environment of the engine's process tree, orphans included.

Its value begins with the tag of the stub that started the engine.
"""
KILL_TIMEOUT_S = 10.0
"""How long to wait for a killed process: freeing GPU memory takes the driver some time."""


def kill_descendants() -> None:
    """Kill all descendants of this process; return when they have exited."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        if fields := _stat_fields(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    family = [os.getpid()]
    for pid in family:
        family += children.get(pid, [])
    _kill_and_wait(family[1:])


def kill_tagged(tag: str) -> None:
    """Kill every process whose TAG_VARIABLE begins with `tag`; return when they have exited."""
    variable = f"{TAG_VARIABLE}={tag}".encode()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline:  # one may start another before it is killed
        tagged = [pid for pid in _all_pids() if pid != os.getpid() and _has_variable(pid, variable)]
        if not tagged:
            return
        _kill_and_wait(tagged)


def start_time(pid: int) -> int | None:
    """Return a process's start time in kernel ticks, which distinguishes it from a later one; None unless it runs."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def _kill_and_wait(pids: Iterable[int]) -> None:
    left = list(pids)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # just exited
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (left := [pid for pid in left if start_time(pid) is not None]) and time.monotonic() < deadline:
        time.sleep(0.005)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _has_variable(pid: int, variable: bytes) -> bool:
    """Return whether its environment has a variable that begins like this. A dead process has no environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(entry.startswith(variable) for entry in file.read().split(b"\0"))
    except OSError:
        return False  # just exited, or another user's


def _stat_fields(pid: int) -> list[str]:
    """Return the fields after the bracketed name, which may hold any character (proc(5)): state, parent, ..."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []  # just exited
