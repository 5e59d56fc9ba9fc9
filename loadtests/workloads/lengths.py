"""Distributions that people can type: of lengths in tokens, of turns, of seconds."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.errors import LoadError

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})?\.\.(?P<high>{_NUMBER})?")
_HIGHEST = 1e9
_SHAPES = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2, "exponential": 1}
_HOW = (
    "write a number, fixed:128, uniform:16,256, normal:128,32 (mean, deviation), lognormal:128,0.5 (median, deviation "
    "of the logarithm), exponential:128 (mean) or trace:FILE, and bounds after a comma if wanted (normal:128,32,1..256)"
)


@dataclass(frozen=True)
class Distribution:
    """Numbers that are never negative, drawn from `draw` and then bounded by `low` and `high`."""

    draw: Callable[[random.Random], float]
    low: float = 0.0
    high: float = math.inf

    def number(self, source: random.Random) -> float:
        return min(max(self.draw(source), self.low), self.high)

    def whole(self, source: random.Random) -> int:
        """The nearest whole number to one that is drawn, at least 1."""
        return max(1, math.floor(self.number(source) + 0.5))


def distribution(text: str, field: str, observed: Callable[[str], Sequence[float]]) -> Distribution:
    """What `text` says, for the field of that name; `observed` reads the numbers of `trace:FILE`.

    `fixed:V`; `uniform:A,B`: all between alike; `normal:MEAN,SD`; `lognormal:MEDIAN,SIGMA`: its logarithm is normal
    with deviation SIGMA, so the mean is MEDIAN * exp(SIGMA^2 / 2); `exponential:MEAN`; `trace:FILE`: one of the
    numbers seen there, each alike. Bounds clip, they don't draw again. Raises LoadError for what says none of these.
    """
    kind, _, rest = text.strip().rpartition(":") if not text.startswith("trace:") else text.partition(":")
    if kind == "trace":
        seen = observed(rest)
        return Distribution(lambda source: seen[int(source.random() * len(seen))])
    values = [part.strip() for part in rest.split(",")]
    low, high = 0.0, math.inf
    if len(values) > 1 and (bounds := _RANGE.fullmatch(values[-1])):
        low, high = float(bounds["low"] or 0.0), float(bounds["high"] or math.inf)
        values.pop()
    shape = kind or "fixed"
    if shape not in _SHAPES or len(values) != _SHAPES[shape] or not all(re.fullmatch(_NUMBER, v) for v in values):
        raise _refused(field, text, _HOW)
    numbers = [float(value) for value in values]
    if max(numbers) > _HIGHEST:
        raise _refused(field, text, f"numbers go up to {_HIGHEST:.0f}")
    if low > high or (shape == "uniform" and numbers[0] > numbers[1]):
        raise _refused(field, text, "the lower bound is above the upper one")
    if shape == "lognormal" and not (numbers[0] > 0 and numbers[1] <= 10):
        raise _refused(field, text, "a lognormal's median is above 0 and its deviation at most 10")
    return Distribution(_draw(shape, numbers), low, high)


def _draw(shape: str, numbers: Sequence[float]) -> Callable[[random.Random], float]:
    first, last = numbers[0], numbers[-1]
    match shape:
        case "uniform":
            return lambda source: source.uniform(first, last)
        case "normal":
            return lambda source: source.gauss(first, last)
        case "lognormal":
            return lambda source: source.lognormvariate(math.log(first), last)
        case "exponential":
            return lambda source: source.expovariate(1.0) * first
        case _:
            return lambda source: first


def _refused(field: str, text: str, why: str) -> LoadError:
    return LoadError(f"{field} {text!r} can't be used: {why}", "workload_invalid")
