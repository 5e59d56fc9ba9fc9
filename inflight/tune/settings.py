"""The settings that `inflight tune` compares: how an engine is built, and how it is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product


@dataclass(frozen=True, order=True)
class EngineBuild:
    """Precisions of an engine's weights and KV cache; an empty one is the target's default.

    >>> str(EngineBuild("int8", "u8"))
    'int8-kv-u8'
    """

    precision: str
    kv_precision: str = ""

    def __str__(self) -> str:
        return self.precision + (f"-kv-{self.kv_precision}" if self.kv_precision else "")


@dataclass(frozen=True, order=True)
class Settings:
    """One candidate. `threads` is 0 for one thread per core, and a limit is 0 where the engine's own holds."""

    build: EngineBuild
    max_num_tokens: int = 0
    max_num_sequences: int = 0
    threads: int = 0
    stream_interval: int = 1

    def __str__(self) -> str:
        parts = [str(self.build)]
        if self.max_num_tokens:
            parts.append(f"{self.max_num_tokens} tokens")
        if self.max_num_sequences:
            parts.append(f"{self.max_num_sequences} sequences")
        if self.threads:
            parts.append(f"{self.threads} thread{'s' if self.threads > 1 else ''}")
        if self.stream_interval > 1:
            parts.append(f"interval {self.stream_interval}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Grid:
    """The values to combine."""

    builds: Sequence[EngineBuild]
    max_num_tokens: Sequence[int] = (0,)
    max_num_sequences: Sequence[int] = (0,)
    threads: Sequence[int] = (0,)
    stream_intervals: Sequence[int] = (1,)

    def engines(self) -> list[Settings]:
        """Return all candidates that differ for the engine alone, at the first stream interval."""
        values = product(self.builds, self.max_num_tokens, self.max_num_sequences, self.threads)
        return [Settings(*combination, self.stream_intervals[0]) for combination in dict.fromkeys(values)]

    def settings(self) -> list[Settings]:
        """Return all candidates."""
        return [
            replace(each, stream_interval=interval) for each in self.engines() for interval in self.stream_intervals
        ]
