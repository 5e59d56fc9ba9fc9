"""The part of a run that is measured, and its length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.columns import Columns, Flags, Floats
from loadtests.analysis.generator_samples import GeneratorSample
from loadtests.arrivals.schedule import due_times
from loadtests.plan import LoadPlan

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
    if _all_made(plan, columns):
        return MeasurementWindow(plan.warmup, min(plan.end, last_end), exhausted=True)
    if traces_end >= plan.end - _SAMPLE_SECONDS:
        return MeasurementWindow(plan.warmup, plan.end)
    if not _nothing_left(generator):
        return MeasurementWindow(plan.warmup, traces_end, cut_short=True)
    if plan.arrivals.kind == "rate" and _started_sessions(columns) == _due(plan):
        return MeasurementWindow(plan.warmup, plan.end)  # nothing more was due
    return MeasurementWindow(plan.warmup, last_end, exhausted=True)


def _all_made(plan: LoadPlan, columns: Columns) -> bool:
    return plan.sessions is not None and _started_sessions(columns) >= plan.sessions


def _nothing_left(generator: Sequence[GeneratorSample]) -> bool:
    """Return whether the last sample of each process says that it had no more sessions to start."""
    last = {sample.worker: sample for sample in sorted(generator, key=lambda sample: sample.t) if not sample.lost}
    return bool(last) and all(sample.exhausted for sample in last.values())


def _started_sessions(columns: Columns) -> int:
    return len(np.unique(columns.session))


def _due(plan: LoadPlan) -> int:
    return sum(1 for _ in due_times(plan.arrivals, plan.seed, plan.end))
