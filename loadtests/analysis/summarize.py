"""Computes the figures of a run from its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from loadtests.analysis.audit import evaluate_audit
from loadtests.analysis.bunching import bunching_notes
from loadtests.analysis.columns import UNKNOWN, Columns, Flags
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.outcomes import count_requests, count_texts, count_tokens, work_within
from loadtests.analysis.run_data import RunData
from loadtests.analysis.server.counters import ServerCounters
from loadtests.analysis.server.figures import encoder_side, reconcile_texts, server_side
from loadtests.analysis.server.reconciliation import reconcile
from loadtests.analysis.slo import goodput
from loadtests.analysis.summary import Cost, LoadPhase, Requests, ServerSide, Summary, TextCost
from loadtests.analysis.timeline import timeline
from loadtests.analysis.window import MeasurementWindow
from loadtests.arrivals.profile import Profile, Stage
from loadtests.mlperf import scenario_notes
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome
from loadtests.run_directory import RunDirectory
from loadtests.workloads.factory import used_fields

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


def cost(plan: LoadPlan, run: Columns, good: Flags | None, measured: MeasurementWindow) -> Cost | TextCost | None:
    """Return the price of the measured part divided by its tokens or texts of completed requests; None without a
    price.

    Tokens of failed requests are paid for but not counted, so errors raise the cost per token. Input tokens count at
    the end of their request. `run` has all requests: those of the warm-up may end in the measured part, as others end
    after it.
    """
    if plan.price_per_hour is None:
        return None
    spent = plan.price_per_hour * measured.seconds / 3600
    completed = run.with_outcome(RequestOutcome.COMPLETED)
    ended = completed & measured.contains(run.ended)
    inputs = float(run.input_tokens[ended & (run.input_tokens != UNKNOWN)].sum())
    if plan.encodes:
        return TextCost(
            currency=plan.currency,
            price_per_hour=plan.price_per_hour,
            per_million_texts=_per_million(spent, work_within(measured, run, completed)),
            per_million_tokens=_per_million(spent, inputs),
            per_million_good_texts=None if good is None else _per_million(spent, work_within(measured, run, good)),
        )
    inputs_known = bool(np.all(run.input_tokens[ended] != UNKNOWN))
    output = work_within(measured, run, completed)
    return Cost(
        currency=plan.currency,
        price_per_hour=plan.price_per_hour,
        per_million_output=_per_million(spent, output),
        # If the server does not count input tokens, the total is unknown.
        per_million_total=_per_million(spent, output + inputs) if inputs_known else None,
        per_million_good_output=None if good is None else _per_million(spent, work_within(measured, run, good)),
    )


def _per_million(spent: float, number: float) -> float | None:
    return spent / number * 1e6 if number else None


def summarize(directory: RunDirectory) -> Summary:
    """Compute exact figures from all records, in whatever order the workers wrote them.

    The measured part is what was due from the end of the warm-up to the end of the plan, or to the end of a run that
    ended early. Raises LoadError `run_not_found` for a missing run, `run_damaged` for a damaged file.
    """
    data = RunData.read(directory)
    server = ServerCounters.read(directory.server_samples())
    plan, run, part, measured = data.plan, data.columns, data.measured_columns, data.window
    requests, seconds = count_requests(part), measured.seconds
    generated = None if plan.encodes else server_side(server, measured)
    in_time = run.with_outcome(RequestOutcome.COMPLETED) & measured.contains(run.ended)
    return Summary(
        measured_seconds=seconds,
        requests=requests,
        offered_per_second=len(part) / seconds if seconds else 0.0,
        completed_per_second=float(in_time.sum() / seconds) if seconds else 0.0,
        tokens=None if plan.encodes else count_tokens(part, run, measured, plan),
        texts=count_texts(part, run, measured) if plan.encodes else None,
        latencies=data.latencies.distributions(),
        slo=tuple(slo.evaluate(part, data.latencies, requests) for slo in data.slos),
        goodput=None if data.good is None else goodput(data.good[data.measured_rows], requests, seconds),
        server=encoder_side(server, measured, plan) if plan.encodes else generated,
        reconciliation=(reconcile_texts if plan.encodes else reconcile)(server, run, plan),
        cost=cost(plan, run, data.good, measured),
        validity=replace(data.validity, notes=tuple(_notes(data, requests, generated))),
        timeline=timeline(plan, run, data.run_latencies, server, data.generator),
        curves=data.latencies.curves(),
        load_phases=load_phases(plan, run, measured),
        offered_sessions_per_second=float((part.turn == 0).sum() / seconds) if seconds else 0.0,
        metadata={**directory.metadata(), "plan": _shown_plan(plan)},
        audit=evaluate_audit(directory, data),
    )


def _notes(data: RunData, requests: Requests, server: ServerSide | None) -> Iterator[str]:
    """Yield remarks about the figures."""
    arrivals = data.plan.arrivals
    poisson = arrivals.kind == "rate" and arrivals.process == "poisson"
    yield from scenario_notes(data.plan.slo, poisson, data.window.seconds)
    yield from bunching_notes(data.latencies, server)
    if requests.empty:
        yield (
            f"{requests.empty} of {requests.completed} answers are empty: the model ended them at their first token; "
            "check the prompts and their format, or give --ignore-eos"
        )


_OF_GENERATION = {"mode", "chat_template", "temperature", "top_p", "ignore_eos", "tenant"}


def _shown_plan(plan: LoadPlan) -> dict[str, Any]:
    """Return the plan for readers; without what only affects generation, if there was none."""
    values = plan.model_dump(mode="json", exclude=_OF_GENERATION if plan.encodes else set())
    if plan.encodes:
        values["workload"] = {name: values["workload"][name] for name in sorted(used_fields(plan.workload))}
    return values
