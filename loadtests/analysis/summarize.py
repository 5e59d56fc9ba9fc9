"""From the files of a run to its figures."""

from __future__ import annotations

from loadtests.analysis.columns import read_columns
from loadtests.analysis.cost import cost
from loadtests.analysis.generator_samples import generator_samples
from loadtests.analysis.goodput import good_requests, goodput
from loadtests.analysis.grade import grade
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.matches import matches
from loadtests.analysis.measured import measured_part
from loadtests.analysis.outcomes import count_requests, count_tokens
from loadtests.analysis.promise import Promise
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
    plan = directory.plan()
    run = read_columns(directory.requests)
    generator = generator_samples(directory.generator_samples())
    server = ServerCounters(directory.server_samples())
    measured = measured_part(plan, run, generator)
    place = run.due_between(plan.warmup, plan.end)
    part = run.part(place)
    promises = [Promise.parse(text) for text in plan.promise]
    requests, latencies, all_latencies = count_requests(part), Latencies.of(part), Latencies.of(run)
    good = good_requests(promises, run, all_latencies)
    seconds = measured.seconds
    in_time = run.of(Outcome.COMPLETED) & measured.has(run.ended)
    return Summary(
        measured_seconds=seconds,
        requests=requests,
        offered_per_second=len(part) / seconds if seconds else 0.0,
        completed_per_second=float(in_time.sum() / seconds) if seconds else 0.0,
        tokens=count_tokens(part, run, measured),
        latencies=latencies.spreads(),
        promise=tuple(promise.judge(latencies, requests) for promise in promises),
        goodput=None if good is None else goodput(good[place], requests, seconds),
        server=server_side(server, measured),
        matches=matches(server, run, plan),
        cost=cost(plan, run, good, measured),
        grade=grade(plan, run, part, measured, generator),
        timeline=timeline(plan, run, all_latencies, server, generator),
        curves=latencies.curves(),
        slices=slices(plan, run, measured),
        facts={**directory.facts(), "plan": plan.model_dump(mode="json")},
    )
