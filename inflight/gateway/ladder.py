"""A ladder of a route: what its requests get instead of a long wait, rung by rung, as the operator has declared it.

Rungs change one at a time, and at least `dwell_seconds` after the last change. The next one is entered once the wait
that admission predicts for the route has been above `enter_wait` for `enter_seconds`. It is left once, for
`leave_seconds`, the wait has been below `leave_wait` and fewer requests came than the places that there are now would
answer as fast as before it was entered: while a rung holds, a short wait alone says only that the rung is of use. A
rung holds with those before it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

logger = logging.getLogger("inflight.gateway")

_TICK_SECONDS = 1.0
_RATE_SECONDS = 10.0
"""Over which the rate of requests is measured, older ones counting less."""
_HEADROOM = 0.9
"""The share of what would be answered without a rung that may come when it is left."""
MAX_RUNGS = 3
Capacity = tuple[float, int]
"""How many places are given back in a second while all are taken, and how many there are."""
_Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rung(_Strict):
    """One of: at most so many tokens for an answer; another model, where context and fields fit; no answer."""

    max_tokens: int | None = Field(None, ge=1, description="Answers have at most so many tokens.")
    model: str | None = Field(None, min_length=1, description="This model answers, if context and fields fit.")
    refuse: Literal[True] | None = Field(None, description="Requests that would wait are refused (429).")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1 or None in (getattr(self, name) for name in self.model_fields_set):
            raise ValueError("a rung must have exactly one of max_tokens, model and refuse")
        return self

    @property
    def name(self) -> str:
        """The rung for headers, metrics and the log."""
        if self.refuse:
            return "refuse"
        return f"model={self.model}" if self.model else f"max_tokens={self.max_tokens}"


class LadderSpec(_Strict):
    """When a route enters and leaves its rungs, in seconds, and the rungs from the first to the last."""

    rungs: tuple[Rung, ...] = Field(min_length=1, max_length=MAX_RUNGS)
    enter_wait: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = Field(
        2.0, description="Predicted wait above which the next rung is entered."
    )
    enter_seconds: _Seconds = Field(3.0, description="For how long the wait must be above it.")
    leave_wait: _Seconds | None = Field(
        None, description="Predicted wait below which the rung is left; by default half of enter_wait."
    )
    leave_seconds: _Seconds = Field(10.0, description="For how long the wait must be below it.")
    dwell_seconds: Annotated[float, Field(ge=30, le=86400)] = Field(30.0, description="Time between two changes.")

    @model_validator(mode="after")
    def _is_a_ladder(self) -> Self:
        if self.leaves_below >= self.enter_wait:
            raise ValueError("leave_wait must be less than enter_wait, or the route would change rungs back and forth")
        kinds = [next(iter(rung.model_fields_set)) for rung in self.rungs]
        if "refuse" in kinds[:-1]:
            raise ValueError("refuse must be the last rung, since no request comes to those after it")
        limits = [rung.max_tokens for rung in self.rungs if rung.max_tokens]
        if any(later >= earlier for earlier, later in pairwise(limits)):
            raise ValueError("max_tokens must be less from rung to rung")
        if kinds.count("model") > 1:
            raise ValueError("a ladder must have one model at most; leave out the others")
        return self

    @property
    def leaves_below(self) -> float:
        return self.enter_wait / 2 if self.leave_wait is None else self.leave_wait


class Ladder:
    """The rung of a route, by the waits that it is given. Sans-IO: the caller has the clock."""

    def __init__(self, spec: LadderSpec, route: str, on_switch: Callable[[int], None] = lambda level: None) -> None:
        """`on_switch` gets the number of rungs that hold after each change."""
        self.spec, self._route, self._on_switch = spec, route, on_switch
        self.level = 0
        """How many rungs hold."""
        self._step = 0
        """Where the wait leads: 1 down, -1 up; `_since` when."""
        self._since = self._seen = self._switched = float("-inf")
        self._coming = 0.0
        """Places that are asked for in a second."""
        self._speeds: list[float] = []
        """How often each place was given back in a second when each rung that holds was entered."""

    @property
    def rungs(self) -> Sequence[Rung]:
        """Those that hold."""
        return self.spec.rungs[: self.level]

    def observe(self, wait: float, now: float, places: int, capacity: Callable[[int], Capacity]) -> None:
        """Take a request for so many places, and the wait that is predicted for it, in seconds.

        `capacity` returns that of where requests go while so many rungs hold.

        Moments don't decrease, and silence counts as no wait.
        """
        silent = self._seen + _TICK_SECONDS
        while self.level and silent < now:
            self._observe(0.0, silent, capacity)
            silent += _TICK_SECONDS
        self._coming = self._rate(now) + places / _RATE_SECONDS
        self._seen = now
        self._observe(wait, now, capacity)

    def _rate(self, now: float) -> float:
        return self._coming * math.exp((self._seen - now) / _RATE_SECONDS) if self._coming else 0.0

    def _observe(self, wait: float, now: float, capacity: Callable[[int], Capacity]) -> None:
        spec, step = self.spec, 0
        if wait > spec.enter_wait and self.level < len(spec.rungs):
            step = 1
        elif self.level and wait < spec.leaves_below:
            _, places = capacity(self.level - 1)
            step = -1 if self._rate(now) < _HEADROOM * self._speeds[-1] * places else 0
        if step != self._step:
            self._step, self._since = step, now
        long_enough = now - self._since >= (spec.enter_seconds if step > 0 else spec.leave_seconds)
        if step and long_enough and now - self._switched >= spec.dwell_seconds:
            if step > 0:
                rate, places = capacity(self.level)
                self._speeds.append(rate / max(1, places))
            else:
                self._speeds.pop()
            self.level += step
            self._step, self._switched = 0, now
            rung = self.rungs[-1].name if self.level else "none"
            logger.warning(
                "The route %s %s a rung of its ladder: %s (predicted wait %.1f s).",
                *(self._route, "enters" if step > 0 else "leaves", rung, wait),
            )
            self._on_switch(self.level)
