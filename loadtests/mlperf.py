"""SLOs of MLPerf Inference: the limits of its server scenario, by benchmark.

https://github.com/mlcommons/inference/blob/master/loadgen/mlperf.conf, whose `llama3_1` is written `llama3.1` here, as
in MLPerf's results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

VERSION = "MLPerf Inference 6.1, LoadGen 6.0.17"
PREFIX = "mlperf:"
MIN_SECONDS = 600.0
_LIMITS = {
    "deepseek-r1": (2000, 80),
    "deepseek-r1-interactive": (1500, 15),
    "gpt-oss-120b": (3000, 80),
    "gpt-oss-120b-interactive": (2000, 15),
    "llama2-70b": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "llama3.1-405b": (6000, 175),
    "llama3.1-405b-interactive": (4500, 80),
    "llama3.1-8b": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "mixtral-8x7b": (2000, 200),
}
"""Milliseconds for the 99th percentiles of TTFT and of TPOT."""
NAMES = tuple(_LIMITS)


def bounds(name: str) -> tuple[str, str] | None:
    """Return the bounds of a benchmark; None if there is no such benchmark.

    >>> bounds("llama3.1-8b-interactive")
    ('p99 ttft <= 500ms', 'p99 tpot <= 30ms')
    """
    limits = _LIMITS.get(name)
    return limits and (f"p99 ttft <= {limits[0]}ms", f"p99 tpot <= {limits[1]}ms")


def scenario_notes(slos: Sequence[str], poisson: bool, seconds: float) -> Iterator[str]:
    """Yield what MLPerf asks for beside its limits, if one of them is in `slos` and the run was different."""
    named = [slo.strip() for slo in slos if slo.strip().startswith(PREFIX)]
    different = [] if poisson else ["had other arrivals"]
    if seconds < MIN_SECONDS:
        different.append(f"measured {seconds:.0f} s")
    if named and different:
        yield (
            f"the limits of {named[0]} are those of {VERSION}, whose server scenario sends single requests with "
            f"Poisson arrivals for at least {MIN_SECONDS:.0f} s; this run {' and '.join(different)}"
        )
