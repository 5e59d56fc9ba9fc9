"""Ends a model's process (Triton's stub) and all that it has started, once its server or the stub itself has ended.

It is a process of its own, started by `guard_launcher.py`: a stub whose threads wait for the interpreter lock, or for
an answer of the dead server, can't end itself. It needs little of the standard library alone, so that it stays small.

While both run, it also says that the stub is alive. Triton's python backend clears a flag in shared memory with each
message, and a thread of the stub sets it every 300 ms. If the stub waits for a processor for a second, on a busy
machine, the backend takes it for dead and frees the message; the stub then reads freed memory and ends with SIGSEGV
(triton-inference-server/server#7938). This process is in a session of its own, which Linux gives its own share of the
processors.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
from collections.abc import Callable, Iterator

from inflight.common.cpu_affinity import use_engine_cores
from inflight.common.process_tree import kill_tagged, start_time

_PERIOD_MS = 500
"""How often the processes are looked at where there is no pidfd_open, or a sandbox forbids it."""
_HEALTH_MS = 200
"""How often the stub is said to be alive."""


def main(arguments: list[str]) -> None:
    """`arguments`: ids and start times of the server and of the stub, and the mark of what the stub starts.

    Behind them the place of the flag, if it is known: a file, and the offset in it.
    """
    use_engine_cores()
    server, server_started, stub, stub_started = map(int, arguments[:4])
    with contextlib.ExitStack() as stack:
        health = stack.enter_context(map_health_flag(*arguments[5:7])) if arguments[5:] else None
        wait_for_any_exit({server: server_started, stub: stub_started}, health)
    if start_time(stub) == stub_started:
        os.kill(stub, signal.SIGKILL)
    kill_tagged(arguments[4])


@contextlib.contextmanager
def map_health_flag(path: str, offset: str) -> Iterator[Callable[[], None] | None]:
    """What sets the flag, a byte of a file; None where the file can't be mapped."""
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), int(offset) + 1)
    except (OSError, ValueError):
        yield None
        return
    with memory:
        yield lambda: memory.__setitem__(int(offset), 1)


def wait_for_any_exit(processes: dict[int, int], health: Callable[[], None] | None = None) -> None:
    """Return once one of these processes, given by id and start time, has ended. Until then call `health` often."""
    ends, period = select.poll(), None
    for pid in processes:
        try:
            ends.register(os.pidfd_open(pid), select.POLLIN)
        except (OSError, AttributeError):  # forbidden, or it has just ended; not built into this Python
            period = _PERIOD_MS
    while all(start_time(pid) == moment for pid, moment in processes.items()):
        if health is not None:
            health()
        ends.poll(period if health is None else _HEALTH_MS)
