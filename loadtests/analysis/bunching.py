"""Tokens that came several at once: then the gaps between them are not those that the server made."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadtests.analysis.columns import Floats, Ints
from loadtests.analysis.distribution import summarize_values
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.summary import ServerSide

BUNCH_GAP = 0.0002
"""Seconds: responses that came within so much of each other came at once. No engine makes 5,000 tokens a second for one
answer, so what held them back is on the way: a proxy that buffers, or a busy server, network or load generator."""

MAX_BUNCHED_FRACTION = 0.2
"""The share of such gaps above which percentiles of the gaps are not those of the time between tokens."""


def bunched_fraction(gaps: Floats) -> float:
    """The share of gaps between responses that came at once, where it is too large; else 0."""
    share = float((gaps < BUNCH_GAP).mean()) if len(gaps) else 0.0
    return share if share > MAX_BUNCHED_FRACTION else 0.0


def values_without_bunching(latencies: Latencies, quantity: str) -> Floats:
    """What `itl` or `tpot` may have been at the most, had nothing held tokens back; infinite where all came at once.

    Of ITL the gaps between bunches, which are the pauses that a reader sees: each is at least as long as any time that
    the server took for one of the tokens that it ends with, so no percentile of them is below that of the true gaps. Of
    TPOT the time from the first bunch to the last over the tokens behind the first: the first one's own were made
    before it came.
    """
    gaps = latencies.gaps
    if quantity == "itl":
        found: Floats = gaps[gaps >= BUNCH_GAP]
        return found if len(found) else np.array([np.inf])
    with np.errstate(divide="ignore"):
        values: Floats = latencies.tpot / _behind_the_first(latencies)
    return values[~np.isnan(values)]


def mean_without_bunching(latencies: Latencies) -> float:
    """The mean ITL by the tokens behind each answer's first bunch."""
    behind = int((_bunch(latencies) > 0).sum())
    return float(latencies.gaps.sum()) / behind if behind else np.inf


def _behind_the_first(latencies: Latencies) -> Floats:
    """For each request the share of its gaps that lie behind its first bunch; NaN where it has none."""
    owner, size = latencies.gap_owner, len(latencies.tpot)
    gaps = np.bincount(owner, minlength=size).astype(float)
    behind = np.bincount(owner, weights=_bunch(latencies) > 0, minlength=size)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gaps > 0, behind / gaps, np.nan)


def _bunch(latencies: Latencies) -> Ints:
    """For each gap in which bunch of its answer the response behind it came, from 0."""
    later = np.cumsum(latencies.gaps >= BUNCH_GAP)
    first = np.flatnonzero(np.diff(latencies.gap_owner, prepend=-1))
    before: Ints = later[first] - (latencies.gaps[first] >= BUNCH_GAP)
    return later - np.repeat(before, np.diff(first, append=len(later)))


def bunching_notes(latencies: Latencies, server: ServerSide | None) -> Iterator[str]:
    """Sentences for the reader of ITL figures."""
    gaps = latencies.gaps
    spread = summarize_values(gaps)
    if spread is None:
        return
    if share := bunched_fraction(gaps):
        said = f"{share:.0%} of the gaps between responses were below {BUNCH_GAP * 1e3:g} ms: tokens came in bunches"
        if waits := summarize_values(gaps[gaps >= BUNCH_GAP]):
            said += f", with pauses of {waits.p50 * 1e3:.1f} ms (p50) and {waits.p99 * 1e3:.1f} ms (p99) between these"
        yield f"{said}. ITL and TPOT show how they were held back on the way and not how fast they were made"
    made = server.itl_seconds if server else None
    if made is not None and spread.p90 < made:
        yield (
            f"ITL is {spread.p90 * 1e3:.1f} ms (p90) here and {made * 1e3:.1f} ms on average in the server: something "
            f"between holds tokens back and lets them go together{_first(latencies, server)}"
        )


def _first(latencies: Latencies, server: ServerSide | None) -> str:
    """What that does to the first tokens."""
    here = summarize_values(latencies.samples("ttft_sent"))
    there = server.ttft_seconds if server else None
    if here is None or there is None:
        return ""
    return f" (mean TTFT: {here.mean * 1e3:.0f} ms here, {there * 1e3:.0f} ms in the server)"
