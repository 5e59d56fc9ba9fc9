"""What a sweep's page says: the highest rate at which the promise held, and the runs that it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.analysis.summary import Bound
from loadtests.analysis.sweep import Step, Sweep
from loadtests.report.bounds import bound_text, bound_value, promise_text
from loadtests.report.formats import count, money, number, share, text
from loadtests.report.headline import Tile, tiles
from loadtests.report.table import Cell, Row, Table
from loadtests.report.tables import sentence, verdict
from loadtests.report.trade_off import Point

_GOODPUT = "goodput of sent / of completed"


def sweep_headline(sweep: Sweep) -> str:
    """The answer in one sentence: up to which rate the promise holds, and what it costs there."""
    if not sweep.steps:
        return "No run was made, so nothing is known of the rate at which the promise holds."
    promise = ", ".join(promise_text(bound) for bound in sweep.promise)
    rates = [step.rate for step in sweep.steps]
    if sweep.highest is None:
        return f"The promise ({promise}) held at no rate that was tried, down to {_rate(sweep, min(rates))}."
    seen = "" if sweep.confirmed else " (seen once)"
    said = [f"The promise ({promise}) holds up to {_rate(sweep, sweep.highest)}{seen}"]
    cost = sweep.best.summary.cost if sweep.best else None
    if cost and cost.per_million_output is not None:
        said[0] += f", where a million output tokens cost {money(cost.per_million_output, cost.currency)}"
    if sweep.best and (lost := sweep.best.summary.requests.error_rate):
        said.append(f"{share(lost)} of the requests were lost there")
    if sweep.lowest_broken is None:
        said.append("no higher rate was tried, so it may hold beyond")
    else:
        said.append(f"at {_rate(sweep, sweep.lowest_broken)} it is broken")
    return "; ".join(said) + "."


def sweep_tiles(sweep: Sweep) -> Sequence[Tile]:
    """The rate that was found, and the main figures of the run at it."""
    searched = count(len(sweep.steps), "run")
    how = f"within {share(sweep.tolerance)}, after {searched}" if sweep.settled else f"not settled after {searched}"
    found = Tile("Highest rate", _rate(sweep, sweep.highest), how, "good" if sweep.highest is not None else "bad")
    others = tiles(sweep.best.summary) if sweep.best else ()
    return [found, *(tile for tile in others if not tile.name.startswith("End to end"))]


def unsettled(sweep: Sweep) -> str:
    """Why the rate may be off by more than the tolerance; empty where it is not."""
    if sweep.failure:
        return f"No further run could be made: {sweep.failure}."
    if sweep.interrupted:
        return "The sweep was interrupted, so the rates that hold and break may lie further apart than was asked for."
    if not sweep.settled:
        return "The search had no runs left before the rates that hold and break lay close together; allow it more."
    return ""


def points(sweep: Sweep) -> list[Point]:
    """Each run as a point of a chart, in the order of their rates."""
    return [
        Point(
            _rate(sweep, step.rate),
            step.summary.tokens.per_second,
            step.summary.latencies,
            step.kept,
            step is sweep.best,
        )
        for step in sorted(sweep.steps, key=lambda step: step.rate)
    ]


def bounds_of(sweep: Sweep) -> tuple[Bound, ...]:
    """The promise's bounds, with what was found at the rate that is marked, or else in the last run."""
    step = sweep.best or (sweep.steps[-1] if sweep.steps else None)
    return step.summary.promise if step else ()


def steps(sweep: Sweep) -> Table:
    """All runs by rate, each with a link to its own page, and for each bound what was found."""
    bounds = [bound_text(bound) for bound in bounds_of(sweep)]
    rows = [_step(sweep, step, number) for number, step in enumerate(sweep.steps, 1)]
    rows = [
        row for _, row in sorted(zip([step.rate for step in sweep.steps], rows, strict=True), key=lambda row: row[0])
    ]
    heads = (f"{sweep.unit}", "run", "requests/s done", "output tokens/s", *bounds, "lost", _GOODPUT, "promise")
    return Table(heads, rows)


def bound_notes(sweep: Sweep) -> list[str]:
    """What makes a run's verdict unsure, each with its rate, by rate."""
    return [
        f"At {_rate(sweep, step.rate)}, {bound_text(bound)}: {text(bound.note).rstrip('.')}."
        for step in sorted(sweep.steps, key=lambda step: step.rate)
        for bound in step.summary.promise
        if bound.note
    ]


def distrusted(sweep: Sweep) -> list[str]:
    """What speaks against runs, each with its rate."""
    return [
        f"At {_rate(sweep, step.rate)}: {sentence(reason)}"
        for step in sweep.steps
        for reason in step.summary.grade.reasons
    ]


def _step(sweep: Sweep, step: Step, place: int) -> Row:
    found = step.summary
    lost = share(found.requests.error_rate) if found.requests.staying else share(None)
    return [
        f"{number(step.rate)}{' ★' if step is sweep.best else ''}",
        Cell(f"{place}", link=f"{step.run}/report.html"),
        number(found.completed_per_second),
        number(found.tokens.per_second),
        *(Cell(bound_value(bound, bound.found), "" if bound.kept else "bad") for bound in found.promise),
        lost,
        f"{share(good.of_sent)} / {share(good.of_completed)}" if (good := found.goodput) else share(None),
        verdict(found.promise),
    ]


def _rate(sweep: Sweep, rate: float | None) -> str:
    return f"{number(rate)} {text(sweep.unit)}" if rate is not None else "none"
