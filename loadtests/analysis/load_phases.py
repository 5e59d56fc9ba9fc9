"""Splits a run into phases of constant, or nearly constant, load."""

from __future__ import annotations

from itertools import pairwise

from loadtests.analysis.columns import Columns
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.outcomes import work_within
from loadtests.analysis.summary import LoadPhase
from loadtests.analysis.window import MeasurementWindow
from loadtests.arrivals.profile import Profile, Stage
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome

_MIN_SECONDS = 5.0
"""Minimum seconds of a piece of a ramp."""

_MAX_PIECES = 8
"""Maximum number of pieces of a ramp."""


def load_phases(plan: LoadPlan, run: Columns, window: MeasurementWindow) -> tuple[LoadPhase, ...]:
    """Return the stages of the plan's profile, with ramps cut into pieces, in the measured part; empty if there is only
    one."""
    if plan.arrivals.kind == "trace":
        return ()
    stages = Profile.parse(plan.arrivals.profile).stages
    bounds = [bound for stage in stages for bound in _pieces(stage)]
    inner = [bound for bound in bounds if window.start < bound < window.end]
    if not inner:
        return ()
    edges = [window.start, *inner, window.end]
    return tuple(_slice(plan, run, MeasurementWindow(start, end)) for start, end in pairwise(edges))


def _pieces(stage: Stage) -> list[float]:
    """Return the stage's start and the points where it is cut."""
    if not stage.slope:
        return [stage.start]
    pieces = max(1, min(_MAX_PIECES, int(stage.length / _MIN_SECONDS)))
    return [stage.start + stage.length * piece / pieces for piece in range(pieces)]


def _slice(plan: LoadPlan, run: Columns, time: MeasurementWindow) -> LoadPhase:
    part = run.select(run.due_between(time.start, time.end))
    completed = run.with_outcome(RequestOutcome.COMPLETED) & time.contains(run.ended)
    return LoadPhase(
        start=time.start,
        end=time.end,
        offered_per_second=len(part) / time.seconds,
        completed_per_second=float(completed.sum() / time.seconds),
        **{"texts_per_second" if plan.encodes else "tokens_per_second": work_within(time, run) / time.seconds},
        latencies=Latencies.from_columns(part).distributions(),
    )
