"""Computes the figures of a run from its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from loadtests.analysis.bunching import bunching_notes
from loadtests.analysis.cost import cost
from loadtests.analysis.goodput import goodput
from loadtests.analysis.load_phases import load_phases
from loadtests.analysis.outcomes import count_requests, count_texts, count_tokens
from loadtests.analysis.run_data import RunData
from loadtests.analysis.server.counters import ServerCounters
from loadtests.analysis.server.encoder import encoder_side, reconcile_texts
from loadtests.analysis.server.figures import server_side
from loadtests.analysis.server.reconciliation import reconcile
from loadtests.analysis.summary import Requests, Summary
from loadtests.analysis.timeline import timeline
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome
from loadtests.run_directory import RunDirectory
from loadtests.workloads.factory import used_fields


def summarize(directory: RunDirectory) -> Summary:
    """Compute exact figures from all records, in whatever order the workers wrote them.

    The measured part is what was due from the end of the warm-up to the end of the plan, or to the end of a run that
    ended early. Raises LoadError `run_not_found` for a missing run, `run_damaged` for a damaged file.
    """
    data = RunData.read(directory)
    server = ServerCounters(directory.server_samples())
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
        validity=replace(data.validity, notes=(*_empty_answers(requests), *bunching_notes(data.latencies, generated))),
        timeline=timeline(plan, run, data.run_latencies, server, data.generator),
        curves=data.latencies.curves(),
        load_phases=load_phases(plan, run, measured),
        offered_sessions_per_second=float((part.turn == 0).sum() / seconds) if seconds else 0.0,
        metadata={**directory.metadata(), "plan": _shown_plan(plan)},
    )


def _empty_answers(requests: Requests) -> Iterator[str]:
    if requests.empty:
        yield (
            f"{requests.empty} of {requests.completed} answers are empty: the model ended them at their first token; "
            "check the prompts and their format, or give --ignore-eos"
        )


_OF_GENERATION = {"mode", "chat_template", "temperature", "top_p", "ignore_eos", "tenant"}


def _shown_plan(plan: LoadPlan) -> dict[str, Any]:
    """Return the plan for readers; without what only affects generation, if there was none."""
    found = plan.model_dump(mode="json", exclude=_OF_GENERATION if plan.encodes else set())
    if plan.encodes:
        found["workload"] = {name: found["workload"][name] for name in sorted(used_fields(plan.workload))}
    return found
