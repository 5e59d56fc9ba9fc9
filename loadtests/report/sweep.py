"""The page of a sweep: the highest rate that met the SLO, and the runs behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtests.analysis.summary import SloResult
from loadtests.analysis.sweep import USERS, Sweep, SweepStep, actual_session_rate
from loadtests.report.formats import count, number, percent, text
from loadtests.report.headline import Tile, cost_text, tiles
from loadtests.report.latency_charts import LoadPoint
from loadtests.report.slo_text import format_slo, slo_text, slo_value
from loadtests.report.tables import Cell, Row, Table, as_sentence, verdict_cell

_GOODPUT = "goodput of sent / of completed"


def sweep_headline(sweep: Sweep) -> str:
    """Return the result in one sentence: the highest rate that meets the SLO, and its cost."""
    if not sweep.steps:
        return "There are no runs, so the highest rate is unknown."
    slo = ", ".join(format_slo(bound) for bound in sweep.slo)
    rates = [step.rate for step in sweep.steps]
    if sweep.highest is None:
        return f"The SLO ({slo}) was met at no tested rate, down to {rate_text(sweep, min(rates))}."
    parts = [f"The SLO ({slo}) is met up to {rate_text(sweep, sweep.highest, more=_repetition_text(sweep))}"]
    if sweep.best and (words := cost_text(sweep.best.summary)):
        parts[0] += f", where {words}"
    if sweep.best and (lost := sweep.best.summary.requests.error_rate):
        parts.append(f"{percent(lost)} of the requests were lost at that rate")
    parts.append(_beyond_text(sweep))
    return "; ".join(parts) + "."


def rate_text(sweep: Sweep, rate: float | None, due: float | None = None, more: str = "") -> str:
    """Return the actual rate, in all runs at this requested rate unless `due` gives it, with the requested rate if it
    differs, and with `more`."""
    real = sweep.actual_rate(rate) if due is None else due
    requested = "" if rate is None or number(real) == number(rate) else f"{number(rate)} requested"
    details = ", ".join(filter(None, (requested, more)))
    return _rate(sweep, real) + (f" ({details})" if details else "")


def _repetition_text(sweep: Sweep) -> str:
    """Return how often the SLO was met at the highest rate, if that was once or not always."""
    runs = sweep.steps_at(sweep.highest)
    kept = sum(step.met for step in runs)
    if kept < len(runs):
        return f"met in {kept} of {len(runs)} runs"
    return "" if sweep.confirmed else "seen once"


def _beyond_text(sweep: Sweep) -> str:
    """Return what is known above the highest rate."""
    if sweep.lowest_missed is None:
        return "no higher rate was tested, so the limit may be higher"
    runs = sweep.steps_at(sweep.lowest_missed)
    broken = sum(not step.met for step in runs)
    often = f" in {broken} of {len(runs)} runs" if broken < len(runs) else ""
    return f"at {rate_text(sweep, sweep.lowest_missed)} it is missed{often}"


def sweep_tiles(sweep: Sweep) -> Sequence[Tile]:
    """Return the rate that was found, and the main figures of the run at it."""
    searched = count(len(sweep.steps), "run")
    reached = f"within {percent(sweep.tolerance)}," if sweep.converged else "not converged"
    how = f"{reached} after {searched}"
    tone = "good" if sweep.highest is not None else "bad"
    highest = Tile("Highest rate", _rate(sweep, sweep.actual_rate(sweep.highest)), how, tone)
    others = tiles(sweep.best.summary) if sweep.best else ()
    return [highest, *(tile for tile in others if not tile.name.startswith("End to end"))]


def not_converged_text(sweep: Sweep) -> str:
    """Return why the rate may be off by more than the tolerance; empty if it is not."""
    if sweep.failure:
        return f"No further run could be made: {sweep.failure}."
    if sweep.interrupted:
        return "The sweep was interrupted, so the result may be less precise than the tolerance."
    if sweep.overlaps:
        return (
            "The actual load was no higher in the runs that missed the SLO than in those that met it: make longer runs "
            "to distinguish these rates."
        )
    if not sweep.converged:
        return "The search ran out of runs before it reached the tolerance; raise --max-runs."
    return ""


def points(sweep: Sweep) -> list[LoadPoint]:
    """Return each run as a point of a chart, in order of rate."""
    return [
        LoadPoint(
            _rate_of(sweep, step),
            step.summary.throughput.value,
            step.summary.latencies,
            step.met,
            step is sweep.best,
            step.rate,
        )
        for step in sorted(sweep.steps, key=lambda step: step.rate)
    ]


def slo_results(sweep: Sweep) -> tuple[SloResult, ...]:
    """Return the SLO's bounds with the values at the highest rate that met it, or else in the last run."""
    step = sweep.best or (sweep.steps[-1] if sweep.steps else None)
    return step.summary.slo if step else ()


def steps(sweep: Sweep) -> Table:
    """Return all runs by rate, each with a link to its page, and the value of each bound."""
    bounds = [slo_text(bound) for bound in slo_results(sweep)]
    unit = sweep.steps[0].summary.throughput.unit if sweep.steps else "output tokens/s"
    by_rate = sorted(enumerate(sweep.steps, 1), key=lambda numbered: numbered[1].rate)
    rows = [_step(sweep, step, number) for number, step in by_rate]
    rates = (sweep.unit,) if sweep.unit == USERS else (f"{sweep.unit} due", "requested")
    heads = (*rates, "run", "requests/s done", unit, *bounds, "lost", _GOODPUT, "SLO")
    return Table(heads, rows)


def slo_notes(sweep: Sweep) -> list[str]:
    """Return the notes that make the verdicts on both sides of the limit uncertain, each once with its rates."""
    return _unique_notes(
        sweep,
        (
            (step, f"{slo_text(bound)}: {text(bound.note).rstrip('.')}.")
            for step in sorted(sweep.steps, key=lambda step: step.rate)
            if step.rate in (sweep.highest, sweep.lowest_missed)
            for bound in step.summary.slo
            if bound.note
        ),
        ", ",
    )


def validity_notes(sweep: Sweep) -> list[str]:
    """Return the reasons why runs are unreliable, each once with its rates."""
    reasons = ((step, as_sentence(reason)) for step in sweep.steps for reason in step.summary.validity.reasons)
    return _unique_notes(sweep, reasons, ": ")


def _unique_notes(sweep: Sweep, notes: Iterable[tuple[SweepStep, str]], between: str) -> list[str]:
    whose: dict[str, list[SweepStep]] = {}
    for step, words in notes:
        whose.setdefault(words, []).append(step)
    return [f"At {_rates_of(sweep, steps)}{between}{words}" for words, steps in whose.items()]


def _rates_of(sweep: Sweep, steps: Sequence[SweepStep]) -> str:
    *others, last = dict.fromkeys(_rate_of(sweep, step) for step in steps)
    return f"{', '.join(others)} and {last}" if others else last


def _step(sweep: Sweep, step: SweepStep, place: int) -> Row:
    summary = step.summary
    lost = percent(summary.requests.error_rate) if summary.requests.not_cancelled else percent(None)
    star = " ★" if step is sweep.best else ""
    rates = [f"{number(step.rate)}{star}"]
    if sweep.unit != USERS:
        rates = [f"{number(actual_session_rate(step))}{star}", number(step.rate)]
    return [
        *rates,
        Cell(f"{place}", link=f"{step.run}/report.html"),
        number(summary.completed_per_second),
        number(summary.throughput.value),
        *(Cell(slo_value(bound, bound.value), "" if bound.met else "bad") for bound in summary.slo),
        lost,
        f"{percent(good.of_sent)} / {percent(good.of_completed)}" if (good := summary.goodput) else percent(None),
        verdict_cell(summary.slo),
    ]


def _rate_of(sweep: Sweep, step: SweepStep) -> str:
    return rate_text(sweep, step.rate, actual_session_rate(step) if sweep.unit != USERS else step.rate)


def _rate(sweep: Sweep, rate: float | None) -> str:
    return f"{number(rate)} {text(sweep.unit)}" if rate is not None else "none"
