"""Which processes send a run's requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Team:
    """`workers` processes of this machine, and `expected` of others, which find the master at `bind` (HOST:PORT).

    One process alone needs no master. Port 0 is any free one. `join_seconds` is how long all may take to be there.
    """

    workers: int = 1
    expected: int = 0
    bind: str = "127.0.0.1:0"
    join_seconds: float = 60.0

    @property
    def alone(self) -> bool:
        return self.workers == 1 and not self.expected

    @property
    def size(self) -> int:
        return self.workers + self.expected

    def arguments(self) -> list[str]:
        """As `loadtests.generator.main` takes them."""
        return [
            f"--workers={self.workers}",
            f"--expect={self.expected}",
            f"--bind={self.bind}",
            f"--join-seconds={self.join_seconds}",
        ]
