"""Ends a process of the load together with the one that started it, however that one ended."""

from __future__ import annotations

import os
import signal

import gevent

_LOOK_SECONDS = 0.5


def watch_parent() -> None:
    """SIGTERM for this process when its parent is gone: nobody is there any more who would send it."""
    gevent.spawn(_watch, os.getppid())


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        gevent.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
