"""Points where a test can kill a job or make its disk full: before and after every durable change.

`INFLIGHT_FAILPOINT=NAME:NUMBER:WHAT` triggers when the point NAME is reached for the NUMBERth time: `kill` (as kill
-9), `full` (no disk space). Without it, a point costs one dictionary lookup.
"""

from __future__ import annotations

import errno
import os
import signal

VARIABLE = "INFLIGHT_FAILPOINT"
_ARMED: dict[str, tuple[int, str]] = {}
_REACHED: dict[str, int] = {}


def arm(text: str) -> None:
    """Parse the failpoints of the variable, separated by commas."""
    for point in filter(None, text.split(",")):
        name, number, what = point.split(":")
        _ARMED[name] = (int(number), what)


def failpoint(name: str) -> None:
    """Trigger the failpoint if a test has armed it. Raises OSError (ENOSPC) for `full`."""
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
