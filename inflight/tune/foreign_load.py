"""How much of the machine other programs use while something is measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

_IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Times that are no work, or that others contain."""


@dataclass(frozen=True)
class ProcessorTimes:
    """Seconds of processor time of the machine, and of this process with those of its children that have ended."""

    at: float
    machine: float
    own: float

    @classmethod
    def now(cls) -> ProcessorTimes:
        machine = sum(value for name, value in psutil.cpu_times()._asdict().items() if name not in _IDLE)
        used = os.times()
        own = used.user + used.system + used.children_user + used.children_system
        return cls(time.monotonic(), machine, own)

    def foreign_share(self, since: ProcessorTimes, cores: int) -> float:
        """Return the fraction of the machine's cores that others used since then."""
        foreign = (self.machine - since.machine) - (self.own - since.own)
        return max(0.0, foreign) / max(1e-9, self.at - since.at) / cores
