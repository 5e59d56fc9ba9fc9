"""A job's figures in words, the same on the bar, in a pipe, in `status` and in the summary."""

from __future__ import annotations

import math

from inflight.batch.seen.cost import Cost
from inflight.batch.seen.progress import Progress, State


def rows(progress: Progress) -> str:
    """12,345 of 100,000 rows (12%)."""
    share = "" if progress.done is None else f" ({_percent(progress.done)})"
    total = progress.rows if progress.state is State.FINISHED else progress.total
    of = "" if total is None else f" of {total:,}"
    return f"{progress.rows:,}{of} {'row' if (total or progress.rows) == 1 else 'rows'}{share}"


def speed(progress: Progress) -> str:
    """Of the last minute."""
    present = progress.speed.present
    return f"{number(present.output_tokens)} tokens/s, {number(present.rows)} rows/s"


def ahead(progress: Progress) -> str:
    """When it will be done; empty once nothing more is awaited."""
    if not progress.state.lives:
        return ""
    return "ETA unknown" if progress.speed.eta is None else f"ETA {duration(progress.speed.eta)}"


def troubles(progress: Progress) -> str:
    """Retries, dead letters, and what failed by its code."""
    counts = progress.counts
    letters = f"{counts.dead:,} dead letter{'' if counts.dead == 1 else 's'}"
    tries = f"{counts.retries:,} {'retry' if counts.retries == 1 else 'retries'}"
    failed = ", ".join(f"{code} {many:,}" for code, many in sorted(counts.codes.items()))
    return f"{tries}, {letters}" + (f", failed: {failed}" if failed else "")


def spent(cost: Cost | None) -> str:
    """Empty where nobody told a price."""
    return "" if cost is None else f"cost {money(cost.spent)}"


def line(progress: Progress) -> str:
    """All of it, as one line; why the job ended is said once it has."""
    parts = (rows(progress), speed(progress), ahead(progress), troubles(progress), spent(progress.cost))
    return f"{progress.state}; " + ", ".join(filter(None, parts))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def money(value: float) -> str:
    """Two decimals, or as many as show three digits of a small sum."""
    small = 2 if value >= 1 or value <= 0 else max(2, 2 - math.floor(math.log10(value)))
    return f"{value:,.{small}f}"


def duration(seconds: float) -> str:
    """0.4 s, 42 s, 5 min 03 s, 3 h 07 min, 2 d 04 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 1 else f"{seconds:.1g} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def _percent(share: float) -> str:
    """Rounded down: 100% is said once all is done."""
    return f"{int(share * 1000) / 10:.1f}%"
