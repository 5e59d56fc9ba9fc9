"""Ends a process of the load generator when its parent ends, for whatever reason."""

from __future__ import annotations

import os
import signal

import gevent

_LOOK_SECONDS = 0.5


def watch_parent() -> None:
    """Send SIGTERM to this process when its parent is gone, since nothing else would stop it."""
    gevent.spawn(_watch, os.getppid())


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        gevent.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
