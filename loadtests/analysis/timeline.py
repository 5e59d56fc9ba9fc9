"""A run second by second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loadtests.analysis.columns import Columns, Floats, Ints
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.outcomes import work_moments
from loadtests.analysis.server.counters import ServerCounters
from loadtests.analysis.server.figures import KV_BLOCK_GAUGES, REQUEST_GAUGES, WAITING_TEXTS, model_label
from loadtests.analysis.summary import Timeline
from loadtests.analysis.window import GeneratorSample
from loadtests.plan import LoadPlan
from loadtests.record import LOST, RequestOutcome

Column = tuple[float | None, ...]

_MAX_OVERRUN_SECONDS = 60.0
"""Maximum seconds after the run's end and its drain that a timeline shows, whatever a record says."""


def timeline(
    plan: LoadPlan,
    run: Columns,
    latencies: Latencies,
    server: ServerCounters,
    generator: Sequence[GeneratorSample],
) -> Timeline:
    """Return the timeline from the run's start to the last end, with the warm-up; earlier events count for second 0."""
    length = _length(plan, run)
    seconds = _Seconds(length)
    seen = run.with_outcome(RequestOutcome.COMPLETED, RequestOutcome.CANCELLED)
    first, counted = seen & (run.responses > 0), seen[run.gap_owner]
    begun, over = seconds.count(run.sent), seconds.count(run.ended)
    columns: dict[str, Column] = {
        "due": _plain(seconds.count(run.due)),
        "sent": _plain(begun),
        "completed": _plain(seconds.count(run.ended[run.with_outcome(RequestOutcome.COMPLETED)])),
        "cancelled": _plain(seconds.count(run.ended[run.with_outcome(RequestOutcome.CANCELLED)])),
        "failed": _plain(seconds.count(run.ended[run.with_outcome(*LOST)])),
        "open": _plain(np.cumsum(begun - over)),
        "texts" if plan.encodes else "tokens": _plain(seconds.sum(*work_moments(run))),
    }
    if plan.encodes:
        done = ~np.isnan(latencies.e2e)
        columns["e2e_p50"], columns["e2e_p99"] = seconds.percentiles(run.due[done], latencies.e2e[done])
        columns["waiting_texts"] = seconds.latest(server.gauge(WAITING_TEXTS, **model_label(plan)))
    else:
        columns["ttft_p50"], columns["ttft_p99"] = seconds.percentiles(run.due[first], latencies.ttft[first])
        columns["itl_p50"], columns["itl_p99"] = seconds.percentiles(run.chunks[run.gap_end][counted], latencies.gaps)
        columns["running"] = seconds.latest(server.gauge(REQUEST_GAUGES, request_type="scheduled"))
        columns["waiting"] = seconds.latest(server.gauge(REQUEST_GAUGES, request_type="waiting"))
        columns["kv_use"] = seconds.latest(server.gauge(KV_BLOCK_GAUGES, kv_cache_block_type="fraction"))
    columns["cpu"], columns["lag"] = _generator(seconds, generator)
    return Timeline(tuple(float(second) for second in range(length)), columns)


class _Seconds:
    """Groups values by second; those outside go into the first or the last second."""

    def __init__(self, length: int) -> None:
        self._length = length

    def index(self, moments: Floats) -> Ints:
        return np.clip(np.floor(moments), 0, self._length - 1).astype(np.int64)

    def count(self, moments: Floats) -> Floats:
        return np.bincount(self.index(moments), minlength=self._length).astype(float)

    def sum(self, moments: Floats, values: Floats) -> Floats:
        return np.bincount(self.index(moments), weights=values, minlength=self._length).astype(float)

    def percentiles(self, moments: Floats, values: Floats) -> tuple[Column, Column]:
        """Return the 50th and the 99th percentile of each second's values."""
        seconds = self.index(moments)
        # A stable sort of 16-bit keys is a radix sort, which is fast for a hundred million gaps.
        narrow = seconds.astype(np.uint16) if self._length < 2**16 else seconds
        values = values[np.argsort(narrow, kind="stable")]
        bounds = np.concatenate(([0], np.cumsum(np.bincount(seconds, minlength=self._length))))
        halves: list[float | None] = []
        tails: list[float | None] = []
        for low, high in pairwise(bounds.tolist()):
            half, tail = np.percentile(values[low:high], (50, 99)).tolist() if low < high else (None, None)
            halves.append(half)
            tails.append(tail)
        return tuple(halves), tuple(tails)

    def latest(self, samples: Sequence[tuple[float, float]]) -> Column:
        """Return the last value of each second that has one, without those before and after the run."""
        column: list[float | None] = [None] * self._length
        for moment, value in samples:
            if 0 <= moment < self._length:
                column[int(moment)] = value
        return tuple(column)


def _length(plan: LoadPlan, run: Columns) -> int:
    last = float(run.ended.max()) if len(run) else 0.0
    return max(1, math.ceil(min(last, plan.end + plan.drain_seconds + _MAX_OVERRUN_SECONDS)))


def _generator(seconds: _Seconds, samples: Sequence[GeneratorSample]) -> tuple[Column, Column]:
    """Return, for each second, the processor cores of all processes together and the longest lag of any."""
    cores: dict[int, dict[str, float]] = {}
    lags: dict[int, float] = {}
    for sample in samples:
        second = math.floor(sample.t)
        cores.setdefault(second, {})[sample.worker] = sample.cpu
        lags[second] = max(lags.get(second, 0.0), sample.lag)
    return (
        seconds.latest([(second, sum(workers.values())) for second, workers in cores.items()]),
        seconds.latest(list(lags.items())),
    )


def _plain(values: Floats) -> Column:
    return tuple(values.tolist())
