"""What one must know of two sets of runs before one believes their comparison."""

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
"""Of a plan: what a change may be about, or what no figure that is compared depends on."""

_LENGTHS = ("warmup", "seconds", "sessions")
"""Fields for the length of a run: a difference is a warning, and the runs can still be compared."""


def comparison_warnings(
    before: Sequence[RunData], after: Sequence[RunData], changes: Sequence[Change]
) -> Iterator[str]:
    """Sentences, the gravest first."""
    for run in (*before, *after):
        for reason in run.validity.reasons:
            yield f"the run {run.name} can't be trusted: {reason}"
        for note in bunching_notes(run.latencies, None):
            yield f"of the run {run.name}, {note}"
    first = before[0]
    for run in (*before[1:], *after):
        if found := _differences(first, run):
            yield f"the runs {first.name} and {run.name} have different plans: {', '.join(found.values())}"
        elif first.plan.slo != run.plan.slo:
            yield f"the runs {first.name} and {run.name} have different SLOs, so goodput is not compared"
    if min(len(before), len(after)) == 1:
        yield (
            "one side is a single run, so how much runs differ by themselves is not in the intervals; "
            "three runs a side or more show it"
        )
    too_few = [
        change.metric for change in changes if change.verdict is ChangeVerdict.TOO_FEW and change.change is not None
    ]
    if too_few:
        yield f"too little was measured to judge {', '.join(too_few)}; make longer runs"


def plans_differ(one: RunData, other: RunData) -> bool:
    """Whether two runs were asked for something else, and not only for longer or shorter."""
    return bool(_differences(one, other).keys() - set(_LENGTHS))


def _differences(one: RunData, other: RunData) -> dict[str, str]:
    """In what two runs were not asked for the same, as far as a figure may depend on it."""
    left, right = _comparable_plan(one), _comparable_plan(other)
    return {
        name: f"{name} {_shown(left[name])} and {_shown(right[name])}" for name in left if left[name] != right[name]
    }


def _comparable_plan(run: RunData) -> dict[str, Any]:
    """A tokenizer is the same wherever its file lies."""
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
