"""Measures the memory of a server's processes repeatedly while it serves."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from types import TracebackType

from benchmarks.leak_detector import Measurement
from inflight.deploy.server.process import ProcessInfo

MIB = 2**20

_OWN = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


class ProcessTreeMemory:
    """Measures in a thread, inside a `with` block, what each process holds, every `period_seconds`.

    A page that several processes share counts once (Linux's proportional set size), so the sum is what the whole
    process tree holds of the machine's memory. Pages of files, which the kernel can drop, are not counted: their share
    per process changes when other servers start and stop. A process that has ended is left out.
    """

    def __init__(self, processes: list[ProcessInfo], period_seconds: float = 1.0) -> None:
        self._processes = processes
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="family-memory", daemon=True)
        self.by_process: dict[str, list[Measurement]] = {member.name: [] for member in processes}
        self.total: list[Measurement] = []
        """The sum over all processes; times on the monotonic clock."""

    def __enter__(self) -> ProcessTreeMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def mib(self) -> float:
        """The latest sum."""
        return self.total[-1].size / MIB if self.total else 0.0

    def _measure(self) -> None:
        while True:
            now = time.monotonic()
            whole = 0.0
            for member in self._processes:
                size = resident_bytes(member)
                if size is not None:
                    self.by_process[member.name].append(Measurement(now, size))
                    whole += size
            self.total.append(Measurement(now, whole))
            if self._stopped.wait(self._period_seconds):
                return


def resident_bytes(member: ProcessInfo) -> int | None:
    """Return the memory of a process without pages of files, with its part of shared pages; None once it has ended."""
    if not member.is_running():
        return None
    try:
        rollup = Path(f"/proc/{member.pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return sum(int(size) for size in _OWN.findall(rollup)) * 1024
