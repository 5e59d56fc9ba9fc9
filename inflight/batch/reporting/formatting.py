"""Formats a job's figures for the bar, pipes, `status` and the summary."""

from __future__ import annotations

import math

from inflight.batch.reporting.cost import JobCost
from inflight.batch.reporting.progress import JobProgress, JobState


def format_rows(progress: JobProgress) -> str:
    """Format as 12,345 of 100,000 rows (12%)."""
    done = progress.fraction_done  # rounded down, so that 100% appears only when everything is done
    share = "" if done is None else f" ({int(done * 1000) / 10:.1f}%)"
    total = progress.rows_done if progress.state is JobState.FINISHED else progress.total
    of = "" if total is None else f" of {total:,}"
    return f"{progress.rows_done:,}{of} {'row' if (total or progress.rows_done) == 1 else 'rows'}{share}"


def format_throughput(progress: JobProgress) -> str:
    """Format the throughput of the last minute."""
    present = progress.throughput.last_minute
    tokens = present.input_tokens if progress.counts.texts else present.output_tokens
    return f"{format_number(tokens)} tokens/s, {format_number(present.rows)} rows/s"


def format_flight(progress: JobProgress) -> str:
    """Format rows in flight and their limit, which may have become lower than they are."""
    limit = "" if progress.concurrency_limit is None else f" (limit {progress.concurrency_limit:,})"
    return f"{progress.in_flight:,} in flight{limit}"


def format_eta(progress: JobProgress) -> str:
    """Format the time left; empty if the job has ended."""
    if not progress.state.is_active:
        return ""
    if progress.throughput.eta is None:
        return "ETA unknown"
    expected = f", {progress.expected}" if progress.expected else ""
    return f"ETA {format_duration(progress.throughput.eta)}{expected}"


def format_failures(progress: JobProgress) -> str:
    """Format retries, dead letters, empty answers, and failures by code."""
    counts = progress.counts
    letters = f"{counts.dead:,} dead letter{'' if counts.dead == 1 else 's'}"
    tries = f"{counts.retries:,} {'retry' if counts.retries == 1 else 'retries'}"
    failed = ", ".join(f"{code} {many:,}" for code, many in sorted(counts.codes.items()))
    letters += f", {counts.copies:,} copies" if counts.copies else ""
    letters += f", {counts.refined:,} refined" if counts.refined else ""
    letters += f", {counts.empty:,} empty answer{'' if counts.empty == 1 else 's'}" if counts.empty else ""
    return f"{tries}, {letters}" + (f", failed: {failed}" if failed else "")


def format_cost(cost: JobCost | None) -> str:
    """Format the cost; empty without a price."""
    return "" if cost is None else f"cost {format_money(cost.spent)}"


def format_line(progress: JobProgress) -> str:
    """Format everything as one line, without the reason for the end, which is shown afterwards."""
    parts = (
        format_rows(progress),
        format_throughput(progress),
        format_eta(progress),
        format_failures(progress),
        format_cost(progress.cost),
    )
    return f"{progress.state}; " + ", ".join(filter(None, parts))


def format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_money(value: float) -> str:
    """Format with two decimals, or three significant digits for a small sum."""
    small = 2 if value >= 1 or value <= 0 else max(2, 2 - math.floor(math.log10(value)))
    return f"{value:,.{small}f}"


def format_duration(seconds: float) -> str:
    """Format as 0.4 s, 42 s, 5 min 03 s, 3 h 07 min, 2 d 04 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 1 else f"{seconds:.1g} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"
