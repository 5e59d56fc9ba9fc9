"""A series whose values depend on those before."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import Floats


def autocorrelated(n: int, phi: float, random: np.random.Generator) -> Floats:
    """AR(1): each value is `phi` times the one before and a shock; of variance 1."""
    shocks = random.normal(size=n) * np.sqrt(1 - phi**2)
    series = np.empty(n)
    last = random.normal()
    for i, shock in enumerate(shocks):
        series[i] = last = phi * last + shock
    return series
