"""Ends a model's process (Triton's stub) and all that it has started, once its server or the stub itself has ended.

It is a process of its own, started by `server_watch.py`: a stub whose threads wait for the interpreter lock, or for an
answer of the dead server, can't end itself. It needs little of the standard library alone, so that it stays small.
"""

from __future__ import annotations

import os
import select
import signal

from inflight.runtime.family import end_marked, started

_PERIOD_MS = 500
"""How often the processes are looked at where there is no pidfd_open, or a sandbox forbids it."""


def main(arguments: list[str]) -> None:
    """`arguments`: ids and start times of the server and of the stub, and the mark of what the stub starts."""
    server, server_started, stub, stub_started = map(int, arguments[:4])
    wait_for_an_end({server: server_started, stub: stub_started})
    if started(stub) == stub_started:
        os.kill(stub, signal.SIGKILL)
    end_marked(arguments[4])


def wait_for_an_end(processes: dict[int, int]) -> None:
    """Return once one of these processes, given by id and start time, has ended."""
    ends, period = select.poll(), None
    for pid in processes:
        try:
            ends.register(os.pidfd_open(pid), select.POLLIN)
        except (OSError, AttributeError):  # forbidden, or it has just ended; not built into this Python
            period = _PERIOD_MS
    while all(started(pid) == moment for pid, moment in processes.items()):
        ends.poll(period)
