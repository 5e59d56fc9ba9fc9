"""What a sweep's page says: the highest rate at which the promise held, and the runs that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtests.analysis.summary import Bound
from loadtests.analysis.sweep import USERS, Step, Sweep, due_of
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
        return f"The promise ({promise}) held at no rate that was tried, down to {rate_words(sweep, min(rates))}."
    said = [f"The promise ({promise}) holds up to {rate_words(sweep, sweep.highest)}{seen(sweep)}"]
    cost = sweep.best.summary.cost if sweep.best else None
    if cost and cost.per_million_output is not None:
        said[0] += f", where a million output tokens cost {money(cost.per_million_output, cost.currency)}"
    if sweep.best and (lost := sweep.best.summary.requests.error_rate):
        said.append(f"{share(lost)} of the requests were lost there")
    said.append(beyond(sweep))
    return "; ".join(said) + "."


def rate_words(sweep: Sweep, rate: float | None, due: float | None = None) -> str:
    """A rate as it was really due, in all runs that asked for it unless `due` says it of one, and how much was asked
    for where that is another figure."""
    real = sweep.due(rate) if due is None else due
    asked = "" if rate is None or number(real) == number(rate) else f" ({number(rate)} asked for)"
    return f"{_rate(sweep, real)}{asked}"


def seen(sweep: Sweep) -> str:
    """How often the promise was found to hold at the highest rate, where that was once or not each time."""
    runs = sweep.at(sweep.highest)
    kept = sum(step.kept for step in runs)
    if kept < len(runs):
        return f" (held in {kept} of {len(runs)} runs)"
    return "" if sweep.confirmed else " (seen once)"


def beyond(sweep: Sweep) -> str:
    """What is known above the highest rate."""
    if sweep.lowest_broken is None:
        return "no higher rate was tried, so it may hold beyond"
    runs = sweep.at(sweep.lowest_broken)
    broken = sum(not step.kept for step in runs)
    often = f" (in {broken} of {len(runs)} runs)" if broken < len(runs) else ""
    return f"at {rate_words(sweep, sweep.lowest_broken)} it is broken{often}"


def sweep_tiles(sweep: Sweep) -> Sequence[Tile]:
    """The rate that was found, and the main figures of the run at it."""
    searched = count(len(sweep.steps), "run")
    how = f"within {share(sweep.tolerance)}, after {searched}" if sweep.settled else f"not settled after {searched}"
    tone = "good" if sweep.highest is not None else "bad"
    found = Tile("Highest rate", _rate(sweep, sweep.due(sweep.highest)), how, tone)
    others = tiles(sweep.best.summary) if sweep.best else ()
    return [found, *(tile for tile in others if not tile.name.startswith("End to end"))]


def unsettled(sweep: Sweep) -> str:
    """Why the rate may be off by more than the tolerance; empty where it is not."""
    if sweep.failure:
        return f"No further run could be made: {sweep.failure}."
    if sweep.interrupted:
        return "The sweep was interrupted, so the rates that hold and break may lie further apart than was asked for."
    if sweep.overlaps:
        return "No more was due where the promise broke than where it held: make longer runs to tell these rates apart."
    if not sweep.settled:
        return "The search had no runs left before the rates that hold and break lay close together; allow it more."
    return ""


def points(sweep: Sweep) -> list[Point]:
    """Each run as a point of a chart, in the order of their rates."""
    return [
        Point(
            _rate_of(sweep, step),
            step.summary.tokens.per_second,
            step.summary.latencies,
            step.kept,
            step is sweep.best,
            step.rate,
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
    rates = (sweep.unit,) if sweep.unit == USERS else (f"{sweep.unit} due", "asked for")
    heads = (*rates, "run", "requests/s done", "output tokens/s", *bounds, "lost", _GOODPUT, "promise")
    return Table(heads, rows)


def bound_notes(sweep: Sweep) -> list[str]:
    """What makes verdicts of runs unsure, each note once with the rates that have it."""
    return _once(
        sweep,
        (
            (step, f"{bound_text(bound)}: {text(bound.note).rstrip('.')}.")
            for step in sorted(sweep.steps, key=lambda step: step.rate)
            for bound in step.summary.promise
            if bound.note
        ),
        ", ",
    )


def distrusted(sweep: Sweep) -> list[str]:
    """What speaks against runs, each reason once with the rates that have it."""
    found = ((step, sentence(reason)) for step in sweep.steps for reason in step.summary.grade.reasons)
    return _once(sweep, found, ": ")


def _once(sweep: Sweep, said: Iterable[tuple[Step, str]], between: str) -> list[str]:
    whose: dict[str, list[Step]] = {}
    for step, words in said:
        whose.setdefault(words, []).append(step)
    return [f"At {_rates_of(sweep, steps)}{between}{words}" for words, steps in whose.items()]


def _rates_of(sweep: Sweep, steps: Sequence[Step]) -> str:
    *others, last = (_rate_of(sweep, step) for step in steps)
    return f"{', '.join(others)} and {last}" if others else last


def _step(sweep: Sweep, step: Step, place: int) -> Row:
    found = step.summary
    lost = share(found.requests.error_rate) if found.requests.staying else share(None)
    star = " ★" if step is sweep.best else ""
    rates = [f"{number(step.rate)}{star}"]
    if sweep.unit != USERS:
        rates = [f"{number(due_of(step))}{star}", number(step.rate)]
    return [
        *rates,
        Cell(f"{place}", link=f"{step.run}/report.html"),
        number(found.completed_per_second),
        number(found.tokens.per_second),
        *(Cell(bound_value(bound, bound.found), "" if bound.kept else "bad") for bound in found.promise),
        lost,
        f"{share(good.of_sent)} / {share(good.of_completed)}" if (good := found.goodput) else share(None),
        verdict(found.promise),
    ]


def _rate_of(sweep: Sweep, step: Step) -> str:
    return rate_words(sweep, step.rate, due_of(step) if sweep.unit != USERS else step.rate)


def _rate(sweep: Sweep, rate: float | None) -> str:
    return f"{number(rate)} {text(sweep.unit)}" if rate is not None else "none"
