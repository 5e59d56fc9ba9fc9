"""Samples of the load generator's processes, one per second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.errors import LoadError
from loadtests.json_files import finite


@dataclass(frozen=True)
class GeneratorSample:
    """One process in one second, as in generator.jsonl."""

    worker: str
    t: float
    cpu: float
    lag: float
    open: int
    sent: int
    lost: bool = False
    """The master reports that it lost the process; the other figures are then 0."""
    exhausted: bool = False
    """The process has no more sessions to start."""


def generator_samples(lines: Iterable[Mapping[str, Any]]) -> list[GeneratorSample]:
    """Read samples. Raises LoadError `run_damaged` for a line that is not a sample."""
    try:
        return [
            GeneratorSample(
                *(str(line["worker"]), finite(line["t"]), finite(line["cpu"]), finite(line["lag"])),
                *(int(line.get("open", 0)), int(line.get("sent", 0))),
                *(bool(line.get("lost")), bool(line.get("exhausted"))),
            )
            for line in lines
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LoadError(f"generator.jsonl has a line that is not a sample: {error}", "run_damaged") from None
