"""Detects bunching: many tokens that arrive at once, so that gaps between responses are not the server's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadtests.analysis.columns import Floats, Ints
from loadtests.analysis.latencies import Latencies, summarize_values
from loadtests.analysis.summary import ServerSide

BUNCH_GAP = 0.0002
"""Seconds. Responses closer together than this arrived at once: no engine makes 5,000 tokens per second for one answer,
so they were held back on the way, by a buffering proxy or a busy server, network or load generator."""

MAX_BUNCHED_FRACTION = 0.2
"""Fraction of such gaps above which percentiles of the gaps no longer describe the time between tokens."""


def bunched_fraction(gaps: Floats) -> float:
    """Return the fraction of gaps between responses that arrived at once if it is too large, else 0."""
    share = float((gaps < BUNCH_GAP).mean()) if len(gaps) else 0.0
    return share if share > MAX_BUNCHED_FRACTION else 0.0


def values_without_bunching(latencies: Latencies, quantity: str) -> Floats:
    """Return upper bounds of `itl` or `tpot` without the bunching; infinite if all tokens came at once.

    For ITL these are the gaps between bunches, the pauses that a reader sees. Each is at least as long as the time that
    the server took for any token of the bunch after it, so no percentile is below the true one. For TPOT it is the time
    from the first bunch to the last, divided by the tokens after the first bunch, because the first bunch's tokens were
    made before it arrived.
    """
    gaps = latencies.gaps
    if quantity == "itl":
        pauses: Floats = gaps[gaps >= BUNCH_GAP]
        return pauses if len(pauses) else np.array([np.inf])
    with np.errstate(divide="ignore"):
        values: Floats = latencies.tpot / _behind_the_first(latencies)
    return values[~np.isnan(values)]


def mean_without_bunching(latencies: Latencies) -> float:
    """Return the mean ITL over the tokens after each answer's first bunch."""
    behind = int((_bunch(latencies) > 0).sum())
    return float(latencies.gaps.sum()) / behind if behind else np.inf


def _behind_the_first(latencies: Latencies) -> Floats:
    """Return, for each request, the fraction of its gaps after its first bunch; NaN if there is none."""
    owner, size = latencies.gap_owner, len(latencies.tpot)
    gaps = np.bincount(owner, minlength=size).astype(float)
    behind = np.bincount(owner, weights=_bunch(latencies) > 0, minlength=size)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gaps > 0, behind / gaps, np.nan)


def _bunch(latencies: Latencies) -> Ints:
    """Return, for each gap, the number (from 0) of the bunch that the response after it belongs to."""
    later = np.cumsum(latencies.gaps >= BUNCH_GAP)
    first = np.flatnonzero(np.diff(latencies.gap_owner, prepend=-1))
    before: Ints = later[first] - (latencies.gaps[first] >= BUNCH_GAP)
    return later - np.repeat(before, np.diff(first, append=len(later)))


def bunching_notes(latencies: Latencies, server: ServerSide | None) -> Iterator[str]:
    """Yield notes for the reader of ITL figures."""
    gaps = latencies.gaps
    distribution = summarize_values(gaps)
    if distribution is None:
        return
    if share := bunched_fraction(gaps):
        note = f"{share:.0%} of the gaps between responses were below {BUNCH_GAP * 1e3:g} ms: tokens came in bunches"
        if waits := summarize_values(gaps[gaps >= BUNCH_GAP]):
            note += f", with pauses of {waits.p50 * 1e3:.1f} ms (p50) and {waits.p99 * 1e3:.1f} ms (p99) between these"
        yield f"{note}. ITL and TPOT show the delays on the way, not the speed of the server"
    made = server.itl_seconds if server else None
    if made is not None and distribution.p90 < made:
        yield (
            f"ITL is {distribution.p90 * 1e3:.1f} ms (p90) here and {made * 1e3:.1f} ms on average in the server: "
            f"something between them buffers tokens{_first(latencies, server)}"
        )


def _first(latencies: Latencies, server: ServerSide | None) -> str:
    """Return the effect on the first tokens."""
    here = summarize_values(latencies.samples("ttft_sent"))
    there = server.ttft_seconds if server else None
    if here is None or there is None:
        return ""
    return f" (mean TTFT: {here.mean * 1e3:.0f} ms here, {there * 1e3:.0f} ms in the server)"
