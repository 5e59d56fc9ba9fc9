"""From the files of a run to its figures."""

from __future__ import annotations

from dataclasses import replace

from loadtests.analysis.bunches import bunch_notes
from loadtests.analysis.cost import cost
from loadtests.analysis.goodput import goodput
from loadtests.analysis.matches import matches
from loadtests.analysis.outcomes import count_requests, count_tokens
from loadtests.analysis.run_data import RunData
from loadtests.analysis.server_counters import ServerCounters
from loadtests.analysis.server_side import server_side
from loadtests.analysis.slices import slices
from loadtests.analysis.summary import Summary
from loadtests.analysis.timeline import timeline
from loadtests.record import Outcome
from loadtests.run_directory import RunDirectory


def summarize(directory: RunDirectory) -> Summary:
    """Exact, from all records; the order in which the workers' came does not matter.

    The measured part is what was due from the end of the warm-up to the end of the plan; a run that ended before has as
    much as there was. Raises LoadError `run_not_found` for no run, `run_damaged` for a damaged file.
    """
    data = RunData.read(directory)
    server = ServerCounters(directory.server_samples())
    plan, run, part, measured = data.plan, data.run, data.part, data.measured
    requests, seconds = count_requests(part), measured.seconds
    side = server_side(server, measured)
    in_time = run.of(Outcome.COMPLETED) & measured.has(run.ended)
    return Summary(
        measured_seconds=seconds,
        requests=requests,
        offered_per_second=len(part) / seconds if seconds else 0.0,
        completed_per_second=float(in_time.sum() / seconds) if seconds else 0.0,
        tokens=count_tokens(part, run, measured, plan),
        latencies=data.latencies.spreads(),
        promise=tuple(promise.judge(part, data.latencies, requests) for promise in data.promises),
        goodput=None if data.good is None else goodput(data.good[data.place], requests, seconds),
        server=side,
        matches=matches(server, run, plan),
        cost=cost(plan, run, data.good, measured),
        grade=replace(data.grade, notes=tuple(bunch_notes(data.latencies, side))),
        timeline=timeline(plan, run, data.run_latencies, server, data.generator),
        curves=data.latencies.curves(),
        slices=slices(plan, run, measured),
        offered_sessions_per_second=float((part.turn == 0).sum() / seconds) if seconds else 0.0,
        facts={**directory.facts(), "plan": plan.model_dump(mode="json")},
    )
