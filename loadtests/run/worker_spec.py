"""The processes that send a run's requests."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class WorkerSpec:
    """`workers` processes on this machine, and `expected` on others, which connect to the master at `bind` (HOST:PORT).

    A single process needs no master. Port 0 is any free one. `join_timeout` is the time for all to connect.
    """

    workers: int = 1
    expected: int = 0
    bind: str = "127.0.0.1:0"
    join_timeout: float = 60.0

    @property
    def is_single(self) -> bool:
        return self.workers == 1 and not self.expected

    @property
    def total(self) -> int:
        return self.workers + self.expected

    def arguments(self) -> list[str]:
        """Return the arguments of `loadtests.generator.main`."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]
