"""What one must know of two sets of runs before one believes their comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.analysis.bunches import bunch_notes
from loadtests.analysis.comparison import Change, Verdict
from loadtests.analysis.run_data import RunData

_MAY_DIFFER = ("address", "model", "metrics_url", "seed", "tenant", "price_per_hour", "currency", "grace")
"""Of a plan: what a change may be about, or what no figure that is compared depends on."""


def comparison_warnings(
    before: Sequence[RunData], after: Sequence[RunData], changes: Sequence[Change]
) -> Iterator[str]:
    """Sentences, the gravest first."""
    for run in (*before, *after):
        for reason in run.grade.reasons:
            yield f"{run.name} can't be trusted: {reason}"
        for note in bunch_notes(run.latencies, None):
            yield f"of the run {run.name}, {note}"
    first = before[0]
    for run in (*before[1:], *after):
        if differences := list(_differences(_flat(first.plan.model_dump()), _flat(run.plan.model_dump()))):
            yield f"{first.name} and {run.name} were made under different plans: {', '.join(differences)}"
    if min(len(before), len(after)) == 1:
        yield (
            "one side is a single run, so how much runs differ by themselves is not in the intervals; "
            "three runs a side or more show it"
        )
    too_few = [change.metric for change in changes if change.verdict is Verdict.TOO_FEW and change.change is not None]
    if too_few:
        yield f"too little was measured to judge {', '.join(too_few)}; make longer runs"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if prefix or name not in _MAY_DIFFER:
            found.update(_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return found


def _differences(left: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    for name in left:
        if left[name] != right[name]:
            yield f"{name} {_shown(left[name])} and {_shown(right[name])}"


def _shown(value: Any) -> str:
    if value is None or value == "" or value == ():
        return "none"
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)
