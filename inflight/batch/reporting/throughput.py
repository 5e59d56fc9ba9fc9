"""Measures a job's throughput, and estimates when it will be done, from readings of its counts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from inflight.batch.job.counts import Counts

RECENT_SECONDS = 60.0
"""Seconds that count as the current throughput."""
_ETA_SECONDS = 600.0
"""Seconds for the ETA: rows are sorted by length within a window, so one minute may have only short ones."""
_MIN_ETA_SECONDS = 2.0
"""Minimum seconds of a run for an ETA."""


class Rates(BaseModel):
    """Amounts per second."""

    model_config = ConfigDict(frozen=True)

    rows: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0


class Throughput(BaseModel):
    """`last_minute` is of the last minute, `this_run` of this run of the job; earlier runs count in neither.

    `eta`: seconds until all rows are done; None while that is unknown.
    """

    model_config = ConfigDict(frozen=True)

    last_minute: Rates = Rates()
    this_run: Rates = Rates()
    eta: float | None = None


@dataclass(frozen=True)
class _Sample:
    at: float
    rows: int
    input_tokens: int
    output_tokens: int
    input_fraction: float | None


class RateEstimator:
    """Estimates rates. Created at the start of a run with the counts of earlier runs, then updated about once a second.

    `total` is the number of rows of the input if known. `retries_left` is the number of done rows that are sent again
    and have no new result yet.
    """

    def __init__(
        self,
        counts: Counts,
        total: int | None = None,
        input_fraction: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        retries_left: int = 0,
    ) -> None:
        self._total = total
        self._clock = clock
        self._first = _sample(clock(), counts, input_fraction, retries_left)
        self._samples = deque([self._first])

    def update(self, counts: Counts, input_fraction: float | None = None, retries_left: int = 0) -> Throughput:
        """Return the current throughput. `input_fraction`: how much of the input is done, 0 to 1."""
        now = _sample(self._clock(), counts, input_fraction, retries_left)
        self._samples.append(now)
        while len(self._samples) > 1 and self._samples[1].at <= now.at - _ETA_SECONDS:
            self._samples.popleft()
        since = now.at - RECENT_SECONDS
        recent = next((look for look in reversed(self._samples) if look.at <= since), self._samples[0])
        return Throughput(last_minute=_rates(recent, now), this_run=_rates(self._first, now), eta=self._eta(now))

    def _eta(self, now: _Sample) -> float | None:
        then = self._samples[0]
        if self._total is None:  # a source that continues in its middle knows no fraction before its first rows
            then = next((look for look in self._samples if look.input_fraction is not None), now)
        seconds = now.at - then.at
        if self._total is not None:
            left, done = float(max(0, self._total - now.rows)), float(now.rows - then.rows)
        elif now.input_fraction is not None and then.input_fraction is not None:
            left, done = 1.0 - now.input_fraction, now.input_fraction - then.input_fraction
        else:
            return None
        if left <= 0:
            return 0.0
        return left / done * seconds if done > 0 and seconds >= _MIN_ETA_SECONDS else None


def _sample(at: float, counts: Counts, input_fraction: float | None, retries_left: int) -> _Sample:
    return _Sample(at, counts.done - retries_left, counts.input_tokens, counts.output_tokens, input_fraction)


def _rates(then: _Sample, now: _Sample) -> Rates:
    seconds = now.at - then.at
    if seconds <= 0:
        return Rates()
    return Rates(
        rows=(now.rows - then.rows) / seconds,
        input_tokens=(now.input_tokens - then.input_tokens) / seconds,
        output_tokens=(now.output_tokens - then.output_tokens) / seconds,
    )
