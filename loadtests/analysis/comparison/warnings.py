"""Warnings about two sets of runs that limit the validity of their comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.analysis.bunching import bunching_notes
from loadtests.analysis.comparison.result import Change, ChangeVerdict
from loadtests.analysis.run_data import RunData

_MAY_DIFFER = (
    *("server", "model", "metrics_url", "seed", "tenant", "price_per_hour", "currency", "drain_seconds"),
    *("header", "ca", "certificate", "key", "slo"),
)
"""Plan fields that a change may be about, or that affect no compared figure."""

_MAX_CHANGE = 1.25
"""Ratio of tokens per response between runs above which their ITL means something else."""

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
        if found := _differences(first, run):
            yield f"the runs {first.name} and {run.name} have different plans: {', '.join(found.values())}"
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


def plans_differ(one: RunData, other: RunData) -> bool:
    """Return whether the plans of two runs differ in more than their length."""
    return bool(_differences(one, other).keys() - set(_LENGTHS))


def _differences(one: RunData, other: RunData) -> dict[str, str]:
    """Return the differences between two runs that may affect a figure."""
    left, right = _comparable_plan(one), _comparable_plan(other)
    return {
        name: f"{name} {_shown(left[name])} and {_shown(right[name])}" for name in left if left[name] != right[name]
    }


def _comparable_plan(run: RunData) -> dict[str, Any]:
    """Return the fields of a plan to compare. A tokenizer is identified by its content, not its path."""
    found = _flat(run.plan.model_dump())
    if known := run.metadata.get("tokenizer"):
        found["workload.tokenizer"] = f"of hash {str(known)[:12]}"
    return found


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if prefix or name not in _MAY_DIFFER:
            found.update(_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return found


def _shown(value: Any) -> str:
    if value is None or value == "" or value == ():
        return "none"
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)
