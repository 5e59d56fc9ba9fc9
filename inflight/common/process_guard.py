"""Processes that end with the process that started them.

As a program, `python -I -S process_guard.py PROGRAM ARGUMENT...` runs a program in this way: the ranks under mpirun,
and mpirun under its guard. Even if all of these are killed at once, no rank continues.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> bool:
    """Make the kernel kill this process when its parent exits; `parent` is its process id, by default the current one.

    Returns False if the parent has exited already: then end this process. The kernel watches the thread that forked, so
    call this only in a child of a thread that keeps running. (Open MPI forks up to 32 ranks in its main thread.)
    Without prctl, as on macOS, it does nothing.
    """
    import ctypes  # slow to load, and small programs import this module

    parent = os.getppid() if parent is None else parent
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def main(command: list[str]) -> None:
    if not die_with_parent():
        return
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
