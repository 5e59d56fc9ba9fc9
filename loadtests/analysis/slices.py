"""The parts of a run in which its load was level, or nearly so."""

from __future__ import annotations

from itertools import pairwise

from loadtests.analysis.columns import Columns
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.measured import Measured
from loadtests.analysis.outcomes import tokens_within
from loadtests.analysis.summary import Slice
from loadtests.arrivals.profile import Profile, Stage
from loadtests.plan import Plan
from loadtests.record import Outcome

_SHORTEST = 5.0
"""Seconds of a ramp that a piece has at the least."""

_PIECES = 8
"""Into how many a ramp is cut at most."""


def slices(plan: Plan, run: Columns, measured: Measured) -> tuple[Slice, ...]:
    """The steps of the plan's profile, and pieces of its ramps, within the measured part; empty where there is one."""
    if plan.arrivals.kind == "trace":
        return ()
    stages = Profile.parse(plan.arrivals.profile).stages
    bounds = [bound for stage in stages for bound in _pieces(stage)]
    inner = [bound for bound in bounds if measured.start < bound < measured.end]
    if not inner:
        return ()
    edges = [measured.start, *inner, measured.end]
    return tuple(_slice(run, Measured(start, end)) for start, end in pairwise(edges))


def _pieces(stage: Stage) -> list[float]:
    """Where the stage begins, and where it is cut."""
    if not stage.slope:
        return [stage.start]
    pieces = max(1, min(_PIECES, int(stage.length / _SHORTEST)))
    return [stage.start + stage.length * piece / pieces for piece in range(pieces)]


def _slice(run: Columns, time: Measured) -> Slice:
    part = run.part(run.due_between(time.start, time.end))
    completed = run.of(Outcome.COMPLETED) & time.has(run.ended)
    return Slice(
        start=time.start,
        end=time.end,
        offered_per_second=len(part) / time.seconds,
        completed_per_second=float(completed.sum() / time.seconds),
        tokens_per_second=tokens_within(time, run) / time.seconds,
        latencies=Latencies.of(part).spreads(),
    )
