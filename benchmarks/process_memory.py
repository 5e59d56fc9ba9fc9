"""The memory of a server's processes, measured again and again while it serves."""

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
    """Inside a `with` block a thread measures what each member holds, every `period_seconds`.

    A page that several processes share counts once (Linux's proportional set size), so the sum is what the whole family
    holds of the machine's memory. Pages of files, which the kernel can drop, are not counted: how much of a library's
    falls to each who has loaded it changes when other servers come and go. A member that is gone is left out.
    """

    def __init__(self, processes: list[ProcessInfo], period_seconds: float = 1.0) -> None:
        self._processes = processes
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="family-memory", daemon=True)
        self.by_process: dict[str, list[Measurement]] = {member.name: [] for member in processes}
        self.total: list[Measurement] = []
        """Of all together; seconds of the monotonic clock."""

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
    """What one process holds without pages of files, shared pages in part; None once it is gone."""
    if not member.is_running():
        return None
    try:
        rollup = Path(f"/proc/{member.pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return sum(int(size) for size in _OWN.findall(rollup)) * 1024
