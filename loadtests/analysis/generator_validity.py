"""Assesses whether the load generator itself was reliable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from loadtests.analysis.columns import Columns
from loadtests.analysis.latencies import summarize_values
from loadtests.analysis.summary import DistributionSummary, Validity
from loadtests.analysis.window import GeneratorSample, MeasurementWindow, count_due
from loadtests.plan import LoadPlan

MAX_SCHEDULE_LAG = 0.010
"""Seconds: maximum 99th percentile of the schedule's lag; above it an open loop did not follow its schedule."""

MAX_CPU_CORES = 0.9
"""Of a core: a process that uses more has no time left to receive responses when they arrive."""

MAX_SATURATED_FRACTION = 0.05
"""Maximum fraction of its seconds in which a process may use more than that."""

MAX_LOOP_LAG = 0.1
"""Seconds that an event loop may be blocked now and then."""

MAX_STALLED_FRACTION = 0.01
"""Maximum fraction of time for which event loops may be blocked for longer than that. Of evenly spread events this
fraction is seen too late, which cannot move a 99th percentile. One stall of half a second in a minute is less."""

_END_TOLERANCE = 0.5
"""Seconds before the end of an interrupted run in which a due session may be missing."""


def assess_validity(
    plan: LoadPlan,
    run: Columns,
    measured_columns: Columns,
    window: MeasurementWindow,
    samples: Sequence[GeneratorSample],
) -> Validity:
    """Assess the generator: `run` has all requests, `measured_columns` those of the measured part. A run without
    samples of its generator is unreliable too."""
    lag = summarize_values(np.maximum(measured_columns.sent - measured_columns.due, 0.0))
    during = [sample for sample in samples if window.start <= sample.t <= window.end and not sample.lost]
    cores: dict[str, list[float]] = defaultdict(list)
    for sample in during:
        cores[sample.worker].append(sample.cpu)
    loop_lag = max((sample.lag for sample in during), default=0.0)
    reasons = [
        *_late(plan, lag),
        *_busy(cores),
        *_stalled([sample.lag for sample in during]),
        *_ended_early(plan, run, window),
        *_lost(run, samples),
        *_missing_sessions(plan, run, window),
    ]
    if not samples:
        reasons.append("the load generator wrote no samples, so its processor time and event loop delays are unknown")
    means = {worker: float(np.mean(values)) for worker, values in sorted(cores.items())}
    return Validity(tuple(reasons), lag, means, max((sample.cpu for sample in during), default=0.0), loop_lag)


def _late(plan: LoadPlan, lag: DistributionSummary | None) -> Iterator[str]:
    if lag and plan.arrivals.kind != "users" and lag.p99 > MAX_SCHEDULE_LAG:
        yield (
            f"1% of requests were sent at least {lag.p99 * 1e3:.0f} ms late (limit: "
            f"{MAX_SCHEDULE_LAG * 1e3:.0f} ms): use more workers, or a machine with more cores"
        )


def _busy(cores: Mapping[str, list[float]]) -> Iterator[str]:
    for worker, values in sorted(cores.items()):
        full = sum(value > MAX_CPU_CORES for value in values)
        if full > MAX_SATURATED_FRACTION * len(values):
            yield (
                f"process {worker} of the load generator used more than {MAX_CPU_CORES:.0%} of a core in {full} of "
                f"{len(values)} seconds, so latencies may be its own and not the server's: use more workers"
            )


def _stalled(lags: Sequence[float]) -> Iterator[str]:
    """Report stalls; `lags` has the longest one of each second of each process."""
    stalls = [lag for lag in lags if lag > MAX_LOOP_LAG]
    if stalls and (share := sum(stalls) / len(lags)) > MAX_STALLED_FRACTION:
        yield (
            f"event loops of the load generator were blocked for {share:.1%} of the time, once for "
            f"{max(stalls) * 1e3:.0f} ms, and responses were received late, so the slowest 1% of latencies may be its "
            f"own and not the server's: stop other load on this machine, or use more workers"
        )


def _ended_early(plan: LoadPlan, run: Columns, measured: MeasurementWindow) -> Iterator[str]:
    if measured.interrupted:
        yield f"it was interrupted after {measured.end:.0f} of {plan.end:.0f} seconds"
    elif measured.cut_short:
        missing = plan.end - measured.end
        yield f"the run ended {missing:.0f} s early, and requests that were open then have no record"
    if after := int((run.sent > plan.end + MAX_SCHEDULE_LAG).sum()):
        yield f"{after} requests were sent after the run's end, because the generator was behind its schedule"


def _lost(run: Columns, samples: Iterable[GeneratorSample]) -> Iterator[str]:
    """Compare the number of requests that each process sent with its records."""
    reported: dict[str, int] = defaultdict(int)
    for sample in samples:
        if sample.lost:
            yield (
                f"process {sample.worker} of the load generator was lost: requests that it had not reported have no "
                f"record, and its later requests were not sent"
            )
        reported[sample.worker] = max(reported[sample.worker], sample.sent)
    sent = sum(reported.values())
    if sent > len(run):
        missing = sent - len(run)
        yield f"{missing} of {sent} requests that were sent have no record: a worker was lost, or the run was killed"
    whose, counts = np.unique(np.stack((run.session, run.turn)), axis=1, return_counts=True)
    if doubled := int((counts > 1).sum()):
        session, turn = whose[:, counts > 1][:, 0]
        yield f"{doubled} requests have more than one record, such as turn {turn} of session {session}"


def _missing_sessions(plan: LoadPlan, run: Columns, measured: MeasurementWindow) -> Iterator[str]:
    """Check that every session of an open loop started at its time, whatever happened to those before.

    If the workload ran out, only the first sessions exist.
    """
    if plan.arrivals.kind != "rate":
        return
    until = measured.end - _END_TOLERANCE if measured.cut_short else plan.end
    due = count_due(plan, until)
    due = min(due, plan.sessions or due)
    started = np.unique(run.session[(run.turn == 0) & (run.due < until)])
    had_no_more = measured.exhausted and len(started) > 0 and len(started) == started[-1] + 1
    if len(started) < due and not had_no_more:
        yield f"{len(started)} of the {due} scheduled sessions were started"
