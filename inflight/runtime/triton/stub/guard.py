"""Ends a model's process tree (Triton's stub) after its server or the stub itself has exited.

It is a separate process, started by `guard_launcher.py`: a stub whose threads wait for the interpreter lock, or for an
answer of the dead server, can't end itself. It imports little of the standard library, so that it stays small.

While both run, it also reports that the stub is alive. Triton's python backend clears a flag in shared memory with each
message, and a thread of the stub sets it every 300 ms. If the stub gets no processor time for a second on a busy
machine, the backend considers it dead and frees the message; the stub then reads freed memory and crashes with SIGSEGV
(triton-inference-server/server#7938). This process is in a separate session, to which Linux gives its own share of the
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
"""Polling interval where pidfd_open is missing or a sandbox forbids it."""
_HEALTH_MS = 200
"""Interval at which the flag is set."""


def main(arguments: list[str]) -> None:
    """`arguments`: ids and start times of the server and of the stub, and the tag of the stub's process tree.

    The location of the flag follows if it is known: a file, and the offset in it.
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
    """Yield a function that sets the flag, a byte of a file; None if the file can't be mapped."""
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), int(offset) + 1)
    except (OSError, ValueError):
        yield None
        return
    with memory:
        yield lambda: memory.__setitem__(int(offset), 1)


def wait_for_any_exit(processes: dict[int, int], health: Callable[[], None] | None = None) -> None:
    """Return once one of these processes, given by id and start time, has exited; meanwhile call `health` regularly."""
    ends, period = select.poll(), None
    for pid in processes:
        try:
            ends.register(os.pidfd_open(pid), select.POLLIN)
        except (OSError, AttributeError):  # forbidden, or it has just exited; or missing in this Python
            period = _PERIOD_MS
    while all(start_time(pid) == moment for pid, moment in processes.items()):
        ended = False
        while not ended:
            if health is not None:
                health()
            ended = bool(ends.poll(period if health is None else _HEALTH_MS)) or period is not None
