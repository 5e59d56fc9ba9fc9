"""Which part of a run counts, and how long it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.columns import Columns, Flags, Floats
from loadtests.analysis.generator_samples import GeneratorSample
from loadtests.plan import Plan

_SAMPLE = 2.0
"""The generator is sampled once a second: its last sample may lie so much before the end, and it was there to it."""


@dataclass(frozen=True)
class Measured:
    """From `start` to `end`, in seconds since the run's start; `cut_short`: the run was ended before its time."""

    start: float
    end: float
    cut_short: bool = False

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)

    def has(self, moments: Floats) -> Flags:
        """Which moments lie in it, its ends included: a run may end with its last token."""
        return (moments >= self.start) & (moments <= self.end)


def measured_part(plan: Plan, columns: Columns, generator: Sequence[GeneratorSample]) -> Measured:
    """All behind the warm-up, to the plan's end.

    A run whose sessions were all made ends with its last answer. One that was killed ends where its traces do: at the
    last end of a request or the last sample of its generator.
    """
    last_end = float(columns.ended.max()) if len(columns) else 0.0
    last_sample = max((sample.t for sample in generator), default=plan.end)
    if _all_made(plan, columns):
        return Measured(plan.warmup, min(plan.end, last_end))
    traces_end = max(last_end, last_sample)
    if traces_end < plan.end - _SAMPLE:
        # A trace may have no more sessions; nobody but the generator knows.
        return Measured(plan.warmup, traces_end, cut_short=plan.arrivals.kind != "trace")
    return Measured(plan.warmup, plan.end)


def _all_made(plan: Plan, columns: Columns) -> bool:
    return plan.sessions is not None and len(np.unique(columns.session)) >= plan.sessions
