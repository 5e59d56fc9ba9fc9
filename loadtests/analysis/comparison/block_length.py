"""Chooses the block length of a block bootstrap, so that correlated neighbours stay together."""

from __future__ import annotations

import math

import numpy as np

from loadtests.analysis.columns import Floats


def block_length(series: Floats) -> int:
    """Return the block length with the least error for the mean of a series, for circular blocks; 1 if uncorrelated.

    Politis and White, "Automatic block-length selection for the dependent bootstrap" (2004), with the correction of
    Patton, Politis and White (2009). At most min(3 sqrt(n), n / 3), as in these papers.
    """
    n = len(series)
    if n < 8 or not np.any(series != series[0]):
        return 1
    # Scale up, so that the squares of very small values do not underflow.
    series = series / np.abs(series).max()
    series = series - series.mean()
    if (largest := float(np.abs(series).max())) < 1e-12:
        return 1
    series = series / largest
    most = math.ceil(min(3 * math.sqrt(n), n / 3))
    needed = max(5, math.ceil(math.log10(n)))
    lags = min(math.ceil(math.sqrt(n)) + needed, n - 1)
    covariance = _autocovariance(series, lags)
    reach = min(2 * _last_significant_lag(covariance / covariance[0], n, needed), lags)
    if reach == 0:
        return 1
    lag = np.arange(1, reach + 1)
    # The flat-top window: 1 up to half of the range, then linear to 0.
    window = np.clip(2 * (1 - lag / reach), 0, 1)
    spread = 2 * float((window * lag * covariance[1 : reach + 1]).sum())
    long_run = float(covariance[0] + 2 * (window * covariance[1 : reach + 1]).sum())
    if long_run <= 0:
        return 1
    best: float = (1.5 * (spread / long_run) ** 2 * n) ** (1 / 3)
    return max(1, min(most, math.ceil(best)))


def _last_significant_lag(correlation: Floats, n: int, needed: int) -> int:
    """Return the lag after which `needed` lags in a row are insignificant."""
    bound = 2 * math.sqrt(math.log10(n) / n)
    large = np.flatnonzero(np.abs(correlation[1:]) >= bound) + 1
    last = 0
    for lag in large.tolist():
        if lag > last + needed:
            break
        last = lag
    return last


def _autocovariance(series: Floats, lags: int) -> Floats:
    """Return the autocovariance of a centred series at lags 0 to `lags`, by FFT with zero padding."""
    n = len(series)
    size = 1 << (2 * n - 1).bit_length()
    power = np.abs(np.fft.rfft(series, size)) ** 2
    found: Floats = np.fft.irfft(power, size)[: lags + 1] / n
    return found
