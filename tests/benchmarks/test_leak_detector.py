"""The detector finds leaks behind noise, and none where there is only noise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from benchmarks.leak_detector import Growth, Measurement, growth
from tests.fixtures.errors import raises

BOUND = 0.03
MIB = 2**20


def series(size: Callable[[float], float], noise: float, seconds: int = 780, seed: int = 1) -> list[Measurement]:
    """One measurement a second of about 400 MiB, with a share of noise and now and then a spike of a third."""
    source = random.Random(seed)
    measured = []
    for second in range(seconds):
        spike = 1.33 if source.random() < 0.05 else 1.0
        measured.append(Measurement(second, 400 * MIB * size(second) * spike * source.gauss(1, noise)))
    return measured


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_noise_and_spikes_are_no_leak(noise: float, seed: int) -> None:
    assert not growth(series(lambda _: 1.0, noise, seed=seed)).exceeds(BOUND)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_a_steady_leak_is_found_behind_them(noise: float, seed: int) -> None:
    found = growth(series(lambda second: 1 + 0.06 * second / 780, noise, seed=seed))
    assert found.exceeds(BOUND)
    assert 0.04 < found.trend < 0.08


def test_what_grows_at_once_and_late_is_found_too() -> None:
    found = growth(series(lambda second: 1.0 if second < 600 else 1.08, 0.005))
    assert found.exceeds(BOUND)
    assert found.trend < BOUND < found.windows


def test_what_comes_and_goes_is_no_leak() -> None:
    assert not growth(series(lambda second: 1 + 0.02 * (second % 20) / 20, 0.005)).exceeds(BOUND)


def test_warming_up_is_not_counted() -> None:
    measured = series(lambda second: 0.5 if second < 120 else 1.0, 0.005)
    assert growth(measured).exceeds(BOUND)
    assert not growth(measured, warm_up_seconds=120).exceeds(BOUND)


def test_shrinking_is_no_growth() -> None:
    found = growth(series(lambda second: 1 - 0.1 * second / 780, 0.005))
    assert found.fraction < 0
    assert isinstance(found, Growth)


def test_a_handful_of_measurements_is_refused() -> None:
    with raises(ValueError, naming="9 measurements"):
        growth(series(lambda _: 1.0, 0.0, seconds=19), warm_up_seconds=10)
