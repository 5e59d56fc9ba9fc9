"""Comparisons as Markdown and as JUnit's XML."""

from __future__ import annotations

from xml.etree import ElementTree

from inflight.evaluate.compare import Comparison, MetricComparison
from inflight.evaluate.statistics import Verdict

_HEAD = ("metric", "verdict", "before", "after", "points", "95%", "p", "harmful", "beneficial", "loss seen (80%)")


def as_markdown(found: Comparison) -> str:
    """Return the verdict, a table of the metrics, and what else is to be known."""
    rows = [_HEAD, ("---",) * len(_HEAD), *map(_cells, found.metrics)]
    changed = found.changed_answers / found.rows
    lines = [
        f"**{str(found.verdict).capitalize()}**: {found.after.path} against {found.before.path}, {found.rows:,} rows,"
        f" margin {found.margin:g} points.",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"- {found.changed_answers:,} of {found.rows:,} answers changed ({changed:.1%}).",
        *_drift(found),
        *([f"- {found.failed:,} rows have no answer in both."] if found.failed else []),
        *(f"- Note: {note}." for note in found.notes),
    ]
    return "\n".join(lines)


def _drift(found: Comparison) -> list[str]:
    if (drift := found.drift) is None:
        return []
    return [
        f"- Their first different token comes after {drift.equal_tokens:g} equal ones (median), where the first model's"
        f" own token had a log probability {drift.gap:.3f} higher (median); in {drift.ties:,} of {drift.rows:,} rows it"
        " was less than 0.1 higher, a tie."
    ]


def _cells(each: MetricComparison) -> tuple[str, ...]:
    change = each.change
    return (
        each.metric.name.replace("|", "\\|"),
        each.verdict,
        f"{change.before:.4f}",
        f"{change.after:.4f}",
        f"{change.points:+.2f}",
        f"{change.interval.low:+.2f} to {change.interval.high:+.2f}",
        f"{change.p:.4f}",
        f"{change.harmful:,}",
        f"{change.beneficial:,}",
        f"{change.detectable:.2f}",
    )


def as_junit(found: Comparison) -> str:
    """Return a suite with a test for each metric: worse is a failure, cannot tell is skipped."""
    counted = [each.verdict for each in found.metrics]
    suite = ElementTree.Element(
        "testsuite",
        name="inflight evaluate compare",
        tests=str(len(counted)),
        failures=str(counted.count(Verdict.WORSE)),
        skipped=str(counted.count(Verdict.UNKNOWN)),
    )
    for each in found.metrics:
        case = ElementTree.SubElement(suite, "testcase", name=each.metric.name, classname="evaluation")
        said = ", ".join(f"{name} {cell}" for name, cell in zip(_HEAD, _cells(each), strict=True))
        if each.verdict is Verdict.WORSE:
            ElementTree.SubElement(case, "failure", message=said)
        elif each.verdict is Verdict.UNKNOWN:
            ElementTree.SubElement(case, "skipped", message=said)
        else:
            ElementTree.SubElement(case, "system-out").text = said
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
