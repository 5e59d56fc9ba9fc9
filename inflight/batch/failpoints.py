"""Moments at which a test lets a job die, or its disk be full: before and after everything that leaves a mark.

`INFLIGHT_FAILPOINT=NAME:NUMBER:WHAT` does it where the point NAME is reached the NUMBERth time: `kill` (as kill -9),
`full` (the disk has no room). Without it a point costs a dictionary's look.
"""

from __future__ import annotations

import errno
import os
import signal

VARIABLE = "INFLIGHT_FAILPOINT"
_ARMED: dict[str, tuple[int, str]] = {}
_REACHED: dict[str, int] = {}


def arm(text: str) -> None:
    """Take points as the variable has them, several with commas between."""
    for one in filter(None, text.split(",")):
        name, number, what = one.split(":")
        _ARMED[name] = (int(number), what)


def failpoint(name: str) -> None:
    """The program is at this point. Raises OSError (ENOSPC) where the test asks for it."""
    if name not in _ARMED:
        return
    _REACHED[name] = _REACHED.get(name, 0) + 1
    number, what = _ARMED[name]
    if _REACHED[name] < number:
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


arm(os.environ.get(VARIABLE, ""))
