"""The arrival times of sessions in an open loop: a random process whose rate follows the profile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt

from loadtests.arrivals.profile import Profile
from loadtests.errors import LoadError
from loadtests.plan import Arrivals

_BATCH_SIZE = 4096
_MIN_BURSTINESS = 0.01
# Separates these draws from those of a workload with the same seed.
_SEED_STREAM = 0x6172726976616C


def due_times(arrivals: Arrivals, seed: int, end: float) -> Iterator[float]:
    """Yield the times, in seconds, at which session 0, 1, 2, ... are due, ascending, all before `end`.

    A renewal process with a mean rate of 1 is mapped through the integral of the profile (time rescaling), so every
    process works with every profile, and the expected number until `t` is the integral until `t`. The intervals of a
    constant profile are, in units of its rate: all 1, the first at 0 (`constant`); exponential (`poisson`); Gamma with
    shape b = `burstiness` and mean 1 (`gamma`), whose coefficient of variation is 1 / sqrt(b), as for vLLM's
    `--burstiness`. The first interval of a Gamma process is that of a stationary process (the rest of an interval that
    contains a random moment); otherwise bursty processes would start with too many arrivals.

    The same seed gives the same times in any process. Raises LoadError for an invalid profile or burstiness.
    """
    if arrivals.kind != "rate":
        raise LoadError(f"arrivals of kind {arrivals.kind!r} have no schedule; only 'rate' has", "invalid_parameter")
    if arrivals.process == "gamma" and arrivals.burstiness < _MIN_BURSTINESS:
        raise LoadError(
            f"a burstiness of {arrivals.burstiness:g} can't be used: below {_MIN_BURSTINESS} nearly all intervals are"
            " 0",
            "invalid_parameter",
        )
    return _scaled_times(Profile.parse(arrivals.profile), arrivals, seed, end)


def _scaled_times(profile: Profile, arrivals: Arrivals, seed: int, end: float) -> Iterator[float]:
    latest = 0.0
    for totals in _unit_process(arrivals, np.random.default_rng([_SEED_STREAM, seed])):
        # Rounding may reorder arrivals that are very close together.
        moments = np.maximum.accumulate(np.maximum(profile.times(totals), latest))
        latest = float(moments[-1])
        before = int(np.searchsorted(moments, end, side="left"))
        yield from moments[:before].tolist()
        if before < len(moments):
            return


def _unit_process(arrivals: Arrivals, random: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the times of a process with a mean rate of 1, some thousands at a time, without end."""
    reached = 0.0
    for block in count():
        if arrivals.process == "constant":
            yield np.arange(block * _BATCH_SIZE, (block + 1) * _BATCH_SIZE, dtype=np.float64)
            continue
        shape = arrivals.burstiness if arrivals.process == "gamma" else 1.0
        intervals = random.standard_gamma(shape, _BATCH_SIZE) / shape
        if block == 0:
            intervals[0] = random.random() * random.standard_gamma(shape + 1.0) / shape
        totals = reached + np.cumsum(intervals)
        reached = float(totals[-1])
        yield totals
