"""Runs a program that dies with the process that started it: `python -I -S bound.py PROGRAM ARGUMENT...`.

The ranks under mpirun are bound so to it, as mpirun is to its guard: even if all of these are killed at once, no rank
lives on. (The kernel looks at the thread that forked; Open MPI forks less than 32 ranks in its main one.)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> None:
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was quicker
        return
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
