"""Tests whether a change made a deployment slower, and with what confidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtests.analysis.bunching import bunching_notes
from loadtests.analysis.columns import Floats
from loadtests.analysis.comparison.bootstrap import interval
from loadtests.analysis.comparison.result import BEFORE_AND_AFTER, Change, ChangeVerdict, Comparison
from loadtests.analysis.comparison.side import MIN_BLOCKS, MIN_SAMPLES, ComparisonSide, Estimate
from loadtests.analysis.run_data import RunData
from loadtests.analysis.slo import required_samples
from loadtests.errors import LoadError
from loadtests.run_directory import RunDirectory
from loadtests.served_model import describe_served_model

_MAY_DIFFER = (
    *("server", "model", "metrics_url", "seed", "tenant", "price_per_hour", "currency", "drain_seconds"),
    *("header", "ca", "certificate", "key", "slo"),
)
"""Plan fields that a change may be about, or that affect no compared figure."""

_MAX_CHANGE = 1.25
"""Ratio of tokens per response between runs above which their ITL means something else."""

_MAX_PROMPT_CHANGE = 1.1
"""Ratio of the mean lengths of prompts above which the sides had different work."""

_LENGTHS = ("warmup", "seconds", "sessions")
"""Plan fields for the length of a run; a difference is only a warning."""


def comparison_warnings(
    before: Sequence[RunData], after: Sequence[RunData], changes: Sequence[Change]
) -> Iterator[str]:
    """Yield warnings, the most severe first."""
    for run in (*before, *after):
        for reason in run.validity.reasons:
            yield f"the run {run.name} is unreliable: {reason}"
        for note in bunching_notes(run.latencies, None):
            yield f"about the run {run.name}: {note}"
    per_response = [each for run in (*before, *after) if (each := run.tokens_per_response) > 0]
    if per_response and max(per_response) > _MAX_CHANGE * min(per_response):
        yield (
            f"responses had {min(per_response):.1f} to {max(per_response):.1f} tokens on average, and ITL is the time"
            " between responses; compare TPOT"
        )
    first = before[0]
    for run in (*before[1:], *after):
        if differences := _differences(first, run):
            yield f"the runs {first.name} and {run.name} have different plans: {', '.join(differences.values())}"
        elif first.plan.slo != run.plan.slo:
            yield f"the runs {first.name} and {run.name} have different SLOs, so goodput is not compared"
    if min(len(before), len(after)) == 1:
        yield (
            "one side is a single run, so the intervals do not include the variation between runs; use at least three "
            "runs per side"
        )
    too_few = [
        change.metric for change in changes if change.verdict is ChangeVerdict.TOO_FEW and change.change is not None
    ]
    if too_few:
        yield f"too little was measured to judge {', '.join(too_few)}; make longer runs"


def _prompt_warnings(names: Sequence[str], sides: Sequence[ComparisonSide]) -> Iterator[str]:
    """Yield a warning if the servers count the tokens of the same prompts differently, or one does not count them."""
    counted = [side.input_tokens for side in sides]
    known = [tokens for tokens in counted if tokens is not None]
    if len(known) == 1:
        yield f"the tokens of the prompts are unknown for {names[counted.index(None)]}, whose server reports no usage"
    elif known and max(known) > _MAX_PROMPT_CHANGE * min(known):
        yield (
            f"the prompts had {known[0]:.0f} tokens for {names[0]} and {known[1]:.0f} for {names[1]}, so the servers "
            "did not have the same work; their tokenizers or chat templates differ"
        )


def plans_differ(run: RunData, other: RunData) -> bool:
    """Return whether the plans of two runs differ in more than their length."""
    return bool(_differences(run, other).keys() - set(_LENGTHS))


def _differences(run: RunData, other: RunData) -> dict[str, str]:
    """Return the differences between two runs that may affect a figure."""
    left, right = _comparable_plan(run), _comparable_plan(other)
    return {
        name: f"{name} {_shown(left[name])} and {_shown(right[name])}" for name in left if left[name] != right[name]
    }


def _comparable_plan(run: RunData) -> dict[str, Any]:
    """Return the fields of a plan to compare. A tokenizer is identified by its content, not its path."""
    values = _flat(run.plan.model_dump())
    if tokenizer := run.metadata.get("tokenizer"):
        values["workload.tokenizer"] = f"of hash {str(tokenizer)[:12]}"
    return values


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if prefix or name not in _MAY_DIFFER:
            flat.update(_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return flat


def _shown(value: Any) -> str:
    if value is None or value == "" or value == ():
        return "none"
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)


LEVELS = {"p50": 0.5, "p99": 0.99}
LATENCIES = ("ttft", "itl", "tpot", "e2e")
REPLICATES = 1000
_MAX_BUNCHING_DIFFERENCE = 0.1
"""Difference between the sides' fractions of bunched gaps above which percentiles of gaps are not compared."""
_CONFIDENCE = 0.95
_POINTS = 0.01
"""Allowed rise of an error rate or fall of goodput: one percentage point."""


def compare(
    before: Sequence[RunDirectory],
    after: Sequence[RunDirectory],
    threshold: float | None = 0.05,
    *,
    seed: int = 0,
    allow_different_plans: bool = False,
    names: tuple[str, str] = BEFORE_AND_AFTER,
) -> Comparison:
    """Compare the figures of both sides, each with an interval for its change. Deterministic for the same runs and
    seed.

    The runs of a side are pooled, and the variation between them widens the interval; for a single run it is unknown,
    and a warning says so. Runs with different plans get no verdict unless that is allowed. `names` are those of the
    sides. Raises LoadError `invalid_parameter` for a side without runs or a negative threshold, and as `summarize`
    does.
    """
    _check(before, after, threshold)
    runs = [RunData.read(directory) for directory in before], [RunData.read(directory) for directory in after]
    sides = ComparisonSide(runs[0], REPLICATES), ComparisonSide(runs[1], REPLICATES)
    freedom = len(runs[0]) - 1, len(runs[1]) - 1
    refused = not allow_different_plans and any(plans_differ(runs[0][0], run) for side in runs for run in side)
    where = names if names == BEFORE_AND_AFTER else (f"by {names[0]}", f"by {names[1]}")
    judge = _ChangeEvaluator(threshold, freedom, refused, where)
    changes = tuple(judge.change(pair) for pair in _pairs(sides, seed))
    return Comparison(
        before=tuple(run.name for run in runs[0]),
        after=tuple(run.name for run in runs[1]),
        threshold=threshold,
        points=_POINTS,
        confidence=_CONFIDENCE,
        changes=changes,
        warnings=(*comparison_warnings(*runs, changes), *_prompt_warnings(names, sides)),
        served=tuple(describe_served_model(run.metadata) for side in runs for run in side),
        plans_differ=refused,
        encoder=sides[0].encodes and sides[1].encodes,
        names=names,
    )


@dataclass(frozen=True)
class _MetricPair:
    """One figure of both sides; `level` is that of a percentile, 0 to 1."""

    metric: str
    unit: str
    before: Estimate | None
    after: Estimate | None
    level: float | None = None
    higher_is_worse: bool = True
    missing_after: bool = False
    """No request was completed after the change."""
    bunched: bool = False
    """The figure is about gaps, and these are dominated by bunching."""

    @property
    def relative(self) -> bool:
        return self.unit != "share"

    @property
    def disappeared(self) -> bool:
        """The figure exists only before the change, because nothing was completed after it."""
        there = self.before is not None and self.before.value > 0
        return self.relative and self.missing_after and there and (self.after is None or self.after.value == 0)


def _pairs(sides: tuple[ComparisonSide, ComparisonSide], seed: int) -> Iterator[_MetricPair]:
    before, after = sides
    nothing = not after.completed
    # Each figure has its own random numbers, so that another figure changes none of the others.
    encoder = before.encodes and after.encodes
    for number, quantity in enumerate(LATENCIES):
        if encoder and quantity != "e2e":
            continue
        percentiles = [
            side.percentiles(quantity, tuple(LEVELS.values()), np.random.default_rng([seed, number, which])) or {}
            for which, side in enumerate(sides)
        ]
        for name, level in LEVELS.items():
            own = percentiles[0].get(level), percentiles[1].get(level)
            unsure = quantity in ("itl", "tpot") and _depends_on_bunching(
                quantity, level, before.bunched_fraction, after.bunched_fraction
            )
            yield _MetricPair(f"{name} {quantity}", "s", *own, level=level, missing_after=nothing, bunched=unsure)
    random = np.random.default_rng([seed, len(LATENCIES)])
    tokens = before.throughput(random), after.throughput(random)
    unit = "texts/s" if encoder else "tokens/s"
    yield _MetricPair("throughput", unit, *tokens, higher_is_worse=False, missing_after=nothing)
    yield _MetricPair("error_rate", "share", before.error_rate(random), after.error_rate(random))
    if before.has_slo == after.has_slo is not None:
        yield _MetricPair("goodput", "share", before.goodput(random), after.goodput(random), higher_is_worse=False)


def _depends_on_bunching(quantity: str, level: float, *shares: float) -> bool:
    """Return whether one side has more bunching than the other, or the percentile of ITL is among bunched gaps."""
    return max(shares) - min(shares) > _MAX_BUNCHING_DIFFERENCE or (quantity == "itl" and level <= max(shares))


@dataclass(frozen=True)
class _ChangeEvaluator:
    threshold: float | None
    degrees_of_freedom: tuple[int, int]
    plans_differ: bool
    where: tuple[str, str]
    """The sides, as they follow a number of samples."""

    def change(self, pair: _MetricPair) -> Change:
        before, after = pair.before, pair.after
        change, ends = None, None
        few = _too_few(pair, self.where)
        note = f"nothing was completed {self.where[1]}" if pair.disappeared else few
        if before and after and (before.value > 0 or not pair.relative):
            change = after.value / before.value if pair.relative else after.value - before.value
            ends = None if note else self._ends(pair.relative, before, after)
        if ends is None:
            note = note or "the value of one side is zero or nearly zero, so there is no relative change"
        verdict, regression = self._verdict(pair, ends)
        if pair.bunched:
            verdict, regression, note = ChangeVerdict.BUNCHED, False, "tokens arrived in bunches"
        if self.plans_differ:
            verdict, regression = ChangeVerdict.DIFFERENT_PLANS, False
        return Change(
            metric=pair.metric,
            unit=pair.unit,
            relative=pair.relative,
            before=before.value if before else None,
            after=after.value if after else None,
            change=change,
            low=ends[0] if ends else None,
            high=ends[1] if ends else None,
            samples_before=before.samples if before else 0,
            samples_after=after.samples if after else 0,
            verdict=verdict,
            regression=regression,
            note=note,
            before_interval=None if few else self._own_interval(before, 0),
            after_interval=None if few else self._own_interval(after, 1),
        )

    def _own_interval(self, side: Estimate | None, which: int) -> tuple[float, float] | None:
        """Return the interval of one side's figure, never below 0."""
        if side is None:
            return None
        low, high = interval(side.value, side.replicates, _CONFIDENCE, self.degrees_of_freedom[which])
        return max(0.0, low), high

    def _ends(self, relative: bool, before: Estimate, after: Estimate) -> tuple[float, float] | None:
        if not relative:
            return self._interval(after.value - before.value, after.replicates - before.replicates)
        if min(before.replicates.min(), after.replicates.min(), after.value) <= 0:
            return None
        log_ratio = np.log(after.value / before.value)
        low, high = self._interval(float(log_ratio), np.log(after.replicates / before.replicates))
        return float(np.exp(low)), float(np.exp(high))

    def _interval(self, value: float, replicates: Floats) -> tuple[float, float]:
        return interval(value, replicates, _CONFIDENCE, sum(self.degrees_of_freedom))

    def _verdict(self, pair: _MetricPair, ends: tuple[float, float] | None) -> tuple[ChangeVerdict, bool]:
        if pair.disappeared:
            return ChangeVerdict.WORSE, self.threshold is not None
        if ends is None:
            return ChangeVerdict.TOO_FEW, False
        none = 1.0 if pair.relative else 0.0
        allowed = math.inf if self.threshold is None else self.threshold if pair.relative else _POINTS
        low, high = ends
        if low <= none <= high:
            return ChangeVerdict.NOT_SHOWN, False
        if (low > none) != pair.higher_is_worse:
            return ChangeVerdict.BETTER, False
        return ChangeVerdict.WORSE, low > none + allowed if pair.higher_is_worse else high < none - allowed


def _too_few(pair: _MetricPair, where: tuple[str, str]) -> str:
    """Return why there is no interval; empty if there can be one."""
    if pair.before is None or pair.after is None:
        return "not measured on both sides"
    least = 0 if pair.level is None else required_samples(pair.level) or 0
    for name, side in zip(where, (pair.before, pair.after), strict=True):
        if side.samples < least:
            return f"{side.samples} samples {name} are too few for a {pair.metric}; at least {least} are needed"
        if side.independent < MIN_SAMPLES:
            what = "seconds" if pair.metric == "throughput" else "requests"
            return f"{side.independent} {what} {name} are too few; at least {MIN_SAMPLES} are needed"
        if pair.level is not None and side.block > 1 and side.independent < MIN_BLOCKS * side.block:
            return (
                f"{side.independent} requests {name} are too few: neighbours within {side.block} are correlated, so "
                f"about {MIN_BLOCKS * side.block} are needed"
            )
    return ""


def _check(before: Sequence[RunDirectory], after: Sequence[RunDirectory], threshold: float | None) -> None:
    if not before or not after:
        raise LoadError("a comparison needs a run before and one after; name at least one of each", "invalid_parameter")
    if threshold is not None and not threshold >= 0:
        raise LoadError(
            f"threshold {threshold:g} is below 0; give a fraction, such as 0.05 for 5%", "invalid_parameter"
        )
