"""The part of a run that is measured, and its length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtests.analysis.columns import Columns, Flags, Floats
from loadtests.arrivals.schedule import due_times
from loadtests.errors import LoadError
from loadtests.json_files import finite
from loadtests.plan import LoadPlan


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


_SAMPLE_SECONDS = 2.0
"""The generator is sampled once a second, so its last sample may be this long before its end."""


@dataclass(frozen=True)
class MeasurementWindow:
    """The window from `start` to `end`, in seconds since the run's start."""

    start: float
    end: float
    cut_short: bool = False
    """The run ended early although there was more to send."""
    interrupted: bool = False
    """The user ended it."""
    exhausted: bool = False
    """The workload had no more sessions."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)

    def contains(self, moments: Floats) -> Flags:
        """Return which times are in the window, both ends included: a run may end with its last token."""
        return (moments >= self.start) & (moments <= self.end)


def measurement_window(
    plan: LoadPlan, columns: Columns, generator: Sequence[GeneratorSample], interrupted: bool = False
) -> MeasurementWindow:
    """Return the window from the end of the warm-up to the plan's end.

    A run whose sessions were all sent, or whose workload had no more, ends with its last answer. An interrupted or
    killed run ends with the last end of a request or the last sample of its generator.
    """
    last_end = float(columns.ended.max()) if len(columns) else 0.0
    last_sample = max((sample.t for sample in generator), default=plan.end)
    traces_end = max(last_end, last_sample)
    if interrupted:
        return MeasurementWindow(
            plan.warmup, min(plan.end, traces_end), cut_short=traces_end < plan.end, interrupted=True
        )
    started = len(np.unique(columns.session))
    if plan.sessions is not None and started >= plan.sessions:
        return MeasurementWindow(plan.warmup, min(plan.end, last_end), exhausted=True)
    if traces_end >= plan.end - _SAMPLE_SECONDS:
        return MeasurementWindow(plan.warmup, plan.end)
    if not _nothing_left(generator):
        return MeasurementWindow(plan.warmup, traces_end, cut_short=True)
    if plan.arrivals.kind == "rate" and started == count_due(plan, plan.end):
        return MeasurementWindow(plan.warmup, plan.end)  # nothing more was due
    return MeasurementWindow(plan.warmup, last_end, exhausted=True)


def _nothing_left(generator: Sequence[GeneratorSample]) -> bool:
    """Return whether the last sample of each process says that it had no more sessions to start."""
    last = {sample.worker: sample for sample in sorted(generator, key=lambda sample: sample.t) if not sample.lost}
    return bool(last) and all(sample.exhausted for sample in last.values())


def count_due(plan: LoadPlan, end: float) -> int:
    """Return how many sessions of an open loop are due before `end`."""
    return sum(1 for _ in due_times(plan.arrivals, plan.seed, end))
