"""The memory of a server's processes, measured again and again while it serves."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import psutil

from benchmarks.leak_detector import Measurement
from inflight.deploy.process import Member

MIB = 2**20


class FamilyMemory:
    """Inside a `with` block a thread measures what each member holds, every `period_seconds`.

    A page that several processes share counts once (Linux's proportional set size), so the sum is what the whole family
    holds of the machine's memory. A member that is gone is left out.
    """

    def __init__(self, family: list[Member], period_seconds: float = 1.0) -> None:
        self._family = family
        self._period_seconds = period_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="family-memory", daemon=True)
        self.by_member: dict[str, list[Measurement]] = {member.name: [] for member in family}
        self.whole: list[Measurement] = []
        """Of all together; seconds of the monotonic clock."""

    def __enter__(self) -> FamilyMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def mib(self) -> float:
        """The latest sum."""
        return self.whole[-1].size / MIB if self.whole else 0.0

    def _measure(self) -> None:
        while True:
            now = time.monotonic()
            whole = 0.0
            for member in self._family:
                size = resident_bytes(member)
                if size is not None:
                    self.by_member[member.name].append(Measurement(now, size))
                    whole += size
            self.whole.append(Measurement(now, whole))
            if self._over.wait(self._period_seconds):
                return


def resident_bytes(member: Member) -> int | None:
    """What one process holds, shared pages in part; None once it is gone."""
    try:
        process = psutil.Process(member.pid)
        if process.create_time() != member.created:
            return None
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return None
