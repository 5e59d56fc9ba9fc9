"""Parses and evaluates load profiles: users, or sessions per second, over time; constant, steps, ramps and spikes."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadtests.errors import LoadError

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_STAGE = re.compile(rf"(?P<first>{_NUMBER})(?:\.\.(?P<last>{_NUMBER}))?(?:/(?P<time>{_NUMBER})(?P<unit>ms|s|m|h))?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_LEVEL = 1e6
_MAX_SECONDS = 366 * 86400.0


@dataclass(frozen=True)
class Stage:
    """A stage from `start` on, in seconds: the level is linear from `first` to `last`, for `length` seconds."""

    start: float
    length: float
    first: float
    last: float

    @property
    def slope(self) -> float:
        return (self.last - self.first) / self.length if self.first != self.last else 0.0

    @property
    def total(self) -> float:
        """The integral of the level over the whole stage."""
        return (self.first + self.last) / 2.0 * self.length


@dataclass(frozen=True)
class Profile:
    """A level over time, piecewise linear and without end: the last stage is constant and infinitely long.

    >>> profile = Profile.parse("2/10s,2..6/10s,6")
    >>> profile.users(5.0), profile.users(15.0), profile.users(100.0)
    (2, 4, 6)
    >>> profile.times(np.array([0.0, 20.0, 60.0, 66.0])).tolist()
    [0.0, 10.0, 20.0, 21.0]
    """

    stages: tuple[Stage, ...]

    @classmethod
    def parse(cls, text: str) -> Profile:
        """Parse stages that are separated by commas; after the last one its level stays.

        `8` is constant; `5/30s` is 5 for half a minute; `1..20/60s` goes from 1 to 20 in a minute. Times are in `ms`,
        `s`, `m` or `h`. Only the last stage may have no time. Raises LoadError for anything else.
        """
        stages: list[Stage] = []
        start = 0.0
        parts = [part.strip() for part in text.split(",")]
        for number, part in enumerate(parts, 1):
            first, last, length = _stage(text, part, is_last=number == len(parts))
            stages.append(Stage(start, length, first, last))
            start += length
        if math.isfinite(start):
            stages.append(Stage(start, math.inf, stages[-1].last, stages[-1].last))
        return cls(tuple(stages))

    def times(self, integrals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return, for each total, the time after which the level's integral from 0 is greater; infinity if it never is.

        If the level is 0 for a while, this is the end of that while: nothing is due in it. Rounding may put a time a
        few units in the last place before that of a lower total.
        """
        at = np.maximum(np.searchsorted(self._columns[-1], integrals, side="right") - 1, 0)
        first, slope, start, length, before = (column[at] for column in self._columns)
        rest = np.maximum(integrals - before, 0.0)
        # The root of first * u + slope * u^2 / 2 = rest, in a form without cancellation for small slopes.
        below = first + np.sqrt(np.maximum(first * first + 2.0 * slope * rest, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            after = np.where(below > 0.0, 2.0 * rest / below, np.where(np.isinf(length), np.inf, 0.0))
        return np.asarray(start + np.minimum(after, length), dtype=np.float64)

    @cached_property
    def changes(self) -> tuple[float, ...]:
        """Return the times, from 0 on, at which the number of users changes; `users` gives the new number."""
        return tuple(moment for moment, _ in self._users)

    def users(self, t: float) -> int:
        """Return the level at `t` as a number of users, rounded."""
        return self._users[bisect_right(self._users, (max(t, 0.0), math.inf)) - 1][1]

    @cached_property
    def _columns(self) -> tuple[npt.NDArray[np.float64], ...]:
        """Return the first level, slope, start and length of each stage, and the integral at its start."""
        rows = [(stage.first, stage.slope, stage.start, stage.length) for stage in self.stages]
        totals = np.cumsum([0.0, *(stage.total for stage in self.stages[:-1])])
        return (*(np.array(column) for column in zip(*rows, strict=True)), totals)

    @cached_property
    def _users(self) -> list[tuple[float, int]]:
        """Return times and the number of users from each on, without those that change nothing."""
        # If several times are equal, the last one is right: where a ramp ends, the next stage decides.
        steps = dict(step for stage in self.stages for step in _whole_steps(stage))
        return [after for before, after in pairwise([(-1.0, -1), *steps.items()]) if before[1] != after[1]]


def _whole_steps(stage: Stage) -> list[tuple[float, int]]:
    """Return when the rounded level changes within a stage, and to what, including its start."""
    first, last = (math.floor(level + 0.5) for level in (stage.first, stage.last))
    up = range(first + 1, last + 1)
    down = range(first - 1, last - 1, -1)
    crossings = [(number - 0.5, number) for number in up] or [(number + 0.5, number) for number in down]
    steps = [(stage.start, first)]
    for level, number in crossings:
        # As a fraction of the length, so that a level reached at the very end coincides with the start of the next
        # stage.
        part = (level - stage.first) / (stage.last - stage.first)
        steps.append((stage.start + part * stage.length, number))
    return steps


def _stage(text: str, part: str, is_last: bool) -> tuple[float, float, float]:
    """Return the first level, last level and seconds of one stage; infinitely many if it has no time."""
    match = _STAGE.fullmatch(part)
    if not match:
        raise _invalid_profile(
            text, f"{part!r} is not a stage; write a level (8), one for a time (5/30s) or a ramp (1..20/60s)"
        )
    first = float(match["first"])
    last = float(match["last"] or match["first"])
    if max(first, last) > _MAX_LEVEL:
        raise _invalid_profile(text, f"the level of {part!r} is above {_MAX_LEVEL:.0f}")
    if match["time"] is None:
        if not is_last:
            raise _invalid_profile(
                text, f"only the last stage may have no time; write {part!r} as {part}/30s, for example"
            )
        if first != last:
            raise _invalid_profile(text, f"the ramp {part!r} needs a time; write {part}/60s, for example")
        return first, last, math.inf
    length = float(match["time"]) * _UNITS[match["unit"]]
    if not 0.001 <= length <= _MAX_SECONDS:
        raise _invalid_profile(text, f"the time of {part!r} is not between a millisecond and a year")
    return first, last, length


def _invalid_profile(text: str, why: str) -> LoadError:
    return LoadError(f"the profile {text!r} can't be used: {why}", "invalid_parameter")
