"""Made-up figures of runs, as pages are tested with: of a usual one, and of those that go wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from loadtests.analysis.comparison import Change, Comparison, Verdict
from loadtests.analysis.summary import (
    Bound,
    Cost,
    Goodput,
    Grade,
    Match,
    Requests,
    ServerSide,
    Slice,
    Spread,
    Summary,
    Timeline,
    Tokens,
)
from loadtests.analysis.sweep import Step, Sweep

PLAN: dict[str, Any] = {
    "address": "127.0.0.1:8001",
    "model": None,
    "workload": {"input_tokens": "lognormal(512, 0.6)", "output_tokens": "64"},
    "arrivals": {"kind": "rate", "profile": "8, 16 at 60, 24 at 90", "process": "poisson"},
    "warmup": 10.0,
    "seconds": 120.0,
    "seed": 7,
    "promise": ["p99 ttft <= 500ms", "p99 itl <= 50ms"],
}


def spread(values: np.ndarray[Any, Any]) -> Spread:
    at = np.percentile(values, [50, 75, 90, 95, 99, 99.9])
    p50, p75, p90, p95, p99, p999 = (float(value) for value in at)
    mean, std, least, most = (float(value) for value in (values.mean(), values.std(), values.min(), values.max()))
    return Spread(len(values), mean, std, least, p50, p75, p90, p95, p99, p999, most)


def curve(values: np.ndarray[Any, Any]) -> tuple[tuple[float, float], ...]:
    tail = [100 - 100 * 2.0 ** (-step / 4) for step in range(int(4 * math.log2(len(values))) + 1)]
    at = [*tail, 100.0]
    return tuple((percentile, float(np.percentile(values, percentile))) for percentile in at)


def usual(seed: int = 1, scale: float = 1.0) -> Summary:
    """Ten seconds of warm-up, two minutes in three steps, ten seconds in which the rest ends."""
    dice = np.random.default_rng(seed)
    sent = dice.lognormal(math.log(0.12 * scale), 0.4, 1600)
    waits = np.where(dice.random(1600) < 0.03, dice.exponential(0.4, 1600), dice.exponential(0.002, 1600))
    itl = dice.gamma(9.0, 0.003 * scale, 90_000)
    tpot = dice.gamma(60.0, 0.00045 * scale, 1600)
    times = {
        "ttft": sent + waits,
        "ttft_sent": sent,
        "e2e": sent + waits + tpot * 63,
        "e2e_sent": sent + tpot * 63,
        "itl": itl,
        "tpot": tpot,
    }
    latencies = {name: spread(values) for name, values in times.items()}
    return Summary(
        measured_seconds=120.0,
        requests=Requests(
            1680,
            1600,
            40,
            24,
            6,
            8,
            2,
            errors={"overloaded": 24, "deadline_exceeded": 6, "unavailable": 8},
            messages={
                "overloaded": "The server has 256 requests waiting and takes no more; try again later.",
                "deadline_exceeded": "The answer was not there within 600 s.",
                "unavailable": "The connection was closed before the answer's end.",
            },
        ),
        offered_per_second=14.0,
        completed_per_second=13.3,
        tokens=Tokens(860_160, 102_400, 853.0, 1.0),
        latencies=latencies,
        promise=tuple(
            Bound(text, latencies[name].p99, limit, latencies[name].p99 <= limit)
            for text, name, limit in (("p99 ttft <= 500ms", "ttft", 0.5), ("p99 itl <= 50ms", "itl", 0.05))
        ),
        goodput=Goodput(1540, 12.8, 0.939, 0.9625),
        server=ServerSide(0.021, 0.131, 9.7, 0.83, 31, 24, 40, 102_400, {"preprocessing": 1.9, "ensemble": 1.0}),
        matches=(
            Match("requests", 1812, 1812, "all that were sent, with warm-up"),
            Match("cancelled", 43, 42, "requests whose client left"),
            Match("output tokens", 110_400, 110_400),
        ),
        cost=Cost("USD", 2.5, 0.814, 0.0867, 0.846),
        grade=Grade((), spread(dice.exponential(0.0012, 1680)), {"worker 0": 0.41, "worker 1": 0.39}, 0.62, 0.0081),
        timeline=timeline(dice),
        facts={
            "began": "2026-11-22T00:30:00Z",
            "versions": {"inflight": "0.1.0", "triton": "2.59.0", "openvino": "2026.4.1"},
            "machine": {"processor": "AMD EPYC 7B13", "cores": 2, "memory_gib": 24},
            "plan": PLAN,
        },
        curves={name: curve(values) for name, values in times.items()},
        slices=tuple(
            Slice(
                start,
                start + 40,
                rate,
                rate * 0.97,
                rate * 62,
                {"ttft": _scaled(latencies["ttft"], slow), "itl": _scaled(latencies["itl"], slow**0.5)},
            )
            for start, rate, slow in ((10.0, 8.0, 0.6), (50.0, 14.0, 0.8), (90.0, 20.0, 1.4))
        ),
    )


def timeline(dice: np.random.Generator) -> Timeline:
    t = np.arange(140)
    rate = np.where(t < 50, 8, np.where(t < 90, 14, 20)) * (t < 130)
    due = dice.poisson(rate)
    open_ = np.maximum(0, rate * 1.7 + dice.normal(0, 1.5, 140)) * (t < 134)
    ttft = 0.1 + rate * 0.004 + dice.random(140) * 0.03
    itl = 0.018 + rate * 0.0005 + dice.random(140) * 0.002
    missing = [None if value == 0 else 1.0 for value in due]

    def some(values: np.ndarray[Any, Any]) -> tuple[float | None, ...]:
        return tuple(None if gap is None else float(value) for value, gap in zip(values, missing, strict=True))

    columns: dict[str, tuple[float | None, ...]] = {
        "due": tuple(map(float, due)),
        "sent": tuple(map(float, due)),
        "completed": tuple(map(float, np.roll(due, 2) * 0.95)),
        "failed": tuple(map(float, dice.random(140) < 0.1)),
        "open": tuple(map(float, open_)),
        "tokens": tuple(map(float, open_ * 36)),
        "ttft_p50": some(ttft),
        "ttft_p99": some(ttft * 2.5),
        "itl_p50": some(itl),
        "itl_p99": some(itl * 1.6),
        "running": tuple(map(float, np.minimum(open_, 24))),
        "waiting": tuple(map(float, np.maximum(open_ - 24, 0))),
        "kv_use": tuple(map(float, np.minimum(open_ / 40, 1))),
    }
    return Timeline(tuple(map(float, t)), columns)


def _scaled(found: Spread, factor: float) -> Spread:
    names = ("mean", "std", "min", "p50", "p75", "p90", "p95", "p99", "p999", "max")
    return replace(found, **{name: getattr(found, name) * factor for name in names})


def sweep() -> Sweep:
    """Seven runs, in the order of a search that doubles and then halves the gap."""
    steps = []
    for place, rate in enumerate((4.0, 8.0, 16.0, 32.0, 22.6, 19.0, 20.7)):
        slow = 0.5 + 0.3 / max(0.02, 1 - rate / 33)
        found = usual(place, slow)
        latencies = {name: _scaled(spread, 1.0) for name, spread in found.latencies.items()}
        promise = (
            Bound("p95 ttft <= 500ms", latencies["ttft"].p95, 0.5, latencies["ttft"].p95 <= 0.5, 1600),
            Bound("p99 itl <= 120ms", latencies["itl"].p99, 0.12, latencies["itl"].p99 <= 0.12, 90_000),
        )
        pace = min(rate, 21.5) * 64
        summary = replace(
            found,
            promise=promise,
            offered_per_second=rate,
            completed_per_second=pace / 64,
            tokens=replace(found.tokens, per_second=pace),
            cost=Cost("USD", 2.5, 2.5e6 / 3600 / pace, None, None),
        )
        steps.append(Step(rate, f"run-{place}", summary, all(bound.kept for bound in promise)))
    highest = max(step.rate for step in steps if step.kept)
    broken = min(step.rate for step in steps if not step.kept)
    return Sweep(tuple(bound.text for bound in promise), tuple(steps), highest, broken, 0.1, True)


def comparison() -> Comparison:
    """A change that made answers begin later, and more of them fail."""
    worse, better, same, few = Verdict.WORSE, Verdict.BETTER, Verdict.NOT_SHOWN, Verdict.TOO_FEW
    changes = (
        Change("p50 ttft", "s", True, 0.121, 0.128, 1.058, 1.031, 1.086, 1600, 1580, worse, False),
        Change("p99 ttft", "s", True, 0.402, 0.512, 1.274, 1.121, 1.44, 1600, 1580, worse, True),
        Change("p99.9 ttft", "s", True, 0.9, 1.1, None, None, None, 1600, 1580, few, False, "it takes 2,995 requests"),
        Change("p50 itl", "s", True, 0.026, 0.0232, 0.892, 0.881, 0.903, 90_000, 89_000, better, False),
        Change("p99 itl", "s", True, 0.052, 0.0526, 1.012, 0.97, 1.058, 90_000, 89_000, same, False),
        Change("output tokens", "tokens/s", True, 853, 849, 0.995, 0.98, 1.011, 120, 120, same, False),
        Change("errors", "share", False, 0.004, 0.031, 0.027, 0.016, 0.039, 1640, 1640, worse, True),
        Change("goodput", "share", False, 0.96, 0.955, -0.005, -0.018, 0.008, 1640, 1640, same, False),
    )
    warnings = ("each side is one run: how much runs differ from one another by themselves can't be known",)
    return Comparison(("runs/main",), ("runs/change",), 0.05, 0.01, 0.95, changes, warnings)


def empty() -> Summary:
    """A run in which nothing was due, and of which nothing else is known."""
    return Summary(
        measured_seconds=0.0,
        requests=Requests(0, 0, 0, 0, 0, 0, 0),
        offered_per_second=0.0,
        completed_per_second=0.0,
        tokens=Tokens(0, 0, 0.0, 0.0),
        latencies={},
        promise=(),
        goodput=None,
        server=None,
        matches=(),
        cost=None,
        grade=Grade((), None, {}, 0.0, 0.0),
        timeline=Timeline((), {}),
        facts={},
    )
