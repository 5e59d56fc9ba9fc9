"""How fast a job goes, and when it will be done, from looks at its counts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from inflight.batch.counts import Counts

PRESENT_SECONDS = 60.0
"""What counts as now."""
_AHEAD_SECONDS = 600.0
"""What the ETA rests on: rows come sorted by length within a window, so a minute may see short ones alone."""
_SURE_SECONDS = 2.0
"""A run shorter than that says nothing of the rest."""


class Rates(BaseModel):
    """Things a second."""

    model_config = ConfigDict(frozen=True)

    rows: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0


class Speed(BaseModel):
    """`present` is of the last minute, `life` of this life of the job; earlier lives count in neither.

    `eta`: seconds until all rows are done; None as long as that can't be known.
    """

    model_config = ConfigDict(frozen=True)

    present: Rates = Rates()
    life: Rates = Rates()
    eta: float | None = None


@dataclass(frozen=True)
class _Look:
    when: float
    rows: int
    input_tokens: int
    output_tokens: int
    share: float | None


class Pace:
    """Made when a life begins, with the counts that earlier lives left; then shown the counts, each second or so.

    `total` is the number of rows of the input where it is known. `left`: how many done rows are asked once more, and
    have no new outcome yet.
    """

    def __init__(
        self,
        counts: Counts,
        total: int | None = None,
        share: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        left: int = 0,
    ) -> None:
        self._total = total
        self._clock = clock
        self._first = _look(clock(), counts, share, left)
        self._looks = deque([self._first])

    def look(self, counts: Counts, share: float | None = None, left: int = 0) -> Speed:
        """How fast it goes. `share`: how much of the input is done, 0 to 1."""
        now = _look(self._clock(), counts, share, left)
        self._looks.append(now)
        while len(self._looks) > 1 and self._looks[1].when <= now.when - _AHEAD_SECONDS:
            self._looks.popleft()
        since = now.when - PRESENT_SECONDS
        recent = next((look for look in reversed(self._looks) if look.when <= since), self._looks[0])
        return Speed(present=_rates(recent, now), life=_rates(self._first, now), eta=self._eta(now))

    def _eta(self, now: _Look) -> float | None:
        then = self._looks[0]
        if self._total is None:  # a source that is read on from its middle knows no share before its first rows
            then = next((look for look in self._looks if look.share is not None), now)
        seconds = now.when - then.when
        if self._total is not None:
            left, done = float(max(0, self._total - now.rows)), float(now.rows - then.rows)
        elif now.share is not None and then.share is not None:
            left, done = 1.0 - now.share, now.share - then.share
        else:
            return None
        if left <= 0:
            return 0.0
        return left / done * seconds if done > 0 and seconds >= _SURE_SECONDS else None


def _look(when: float, counts: Counts, share: float | None, left: int) -> _Look:
    return _Look(when, counts.done - left, counts.input_tokens, counts.output_tokens, share)


def _rates(then: _Look, now: _Look) -> Rates:
    seconds = now.when - then.when
    if seconds <= 0:
        return Rates()
    return Rates(
        rows=(now.rows - then.rows) / seconds,
        input_tokens=(now.input_tokens - then.input_tokens) / seconds,
        output_tokens=(now.output_tokens - then.output_tokens) / seconds,
    )
