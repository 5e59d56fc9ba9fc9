"""Detects a start that hangs: its processes neither compute nor access a disk.

Triton and a stub can deadlock on a busy machine. The duration of a start shows nothing (reading a large engine takes
minutes), but one that makes progress uses the processor, or waits for a disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

_IDLE_CPU_FRACTION = 0.01  # of one core; an idle server uses less than half of that
_CHECK_INTERVAL = 1.0


@dataclass(frozen=True)
class ResourceUsage:
    """What processes have used so far, and whether one of their threads waits for a disk now."""

    cpu_seconds: float = 0.0
    disk_bytes: int = 0
    waiting_for_disk: bool = False


class StallDetector:
    """Watches one start; `is_stalled` is cheap and may be called often."""

    def __init__(self, usage: Callable[[], ResourceUsage], seconds: float) -> None:
        self._usage = usage
        self._seconds = seconds
        self._since = self._last_check = time.monotonic()
        self._before = usage()

    def is_stalled(self) -> bool:
        """Return whether hardly anything was used during the given seconds."""
        now = time.monotonic()
        if now - self._last_check < min(_CHECK_INTERVAL, self._seconds / 5):
            return False
        self._last_check, used = now, self._usage()
        computed = abs(used.cpu_seconds - self._before.cpu_seconds)  # less than before if a process has exited
        if (
            computed > self._seconds * _IDLE_CPU_FRACTION
            or used.disk_bytes != self._before.disk_bytes
            or used.waiting_for_disk
        ):
            self._since, self._before = now, used
        return now - self._since > self._seconds


def measure_usage(processes: Iterable[psutil.Process]) -> ResourceUsage:
    """Return what these processes and their exited children have used."""
    cpu, disk, waits = 0.0, 0, False
    for process in processes:
        try:
            cpu += sum(process.cpu_times()[:4])
            waits = waits or _waiting_for_disk(process.pid)
            io = process.io_counters()
            disk += io.read_bytes + io.write_bytes
        except (OSError, psutil.Error):
            continue  # just exited, or its counters are forbidden
    return ResourceUsage(cpu, disk, waits)


def _waiting_for_disk(pid: int) -> bool:
    """Return whether a thread is in uninterruptible sleep (D in proc(5))."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] == "D":
                return True
    return False
