"""Lets a process that the server started use more than its few cores."""

from __future__ import annotations

import os
from contextlib import suppress


def use_engine_cores() -> None:
    """Run on all cores that the engine may use, with ordinary scheduling."""
    cores = os.environ.get("INFLIGHT_ENGINE_CORES", "")
    if cores:  # a sandbox may forbid either
        with suppress(OSError):
            os.sched_setaffinity(0, map(int, cores.split(",")))
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
