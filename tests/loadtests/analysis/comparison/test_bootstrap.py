from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadtests.analysis.comparison.bootstrap import MAX_CELLS, block_length, cell_of, interval, resample
from loadtests.analysis.comparison.side import PooledValues, resampled_percentiles
from tests.loadtests.analysis.comparison.series import autocorrelated


def test_what_hangs_together_needs_longer_blocks() -> None:
    random = np.random.default_rng(1)
    lengths = [
        float(np.mean([block_length(autocorrelated(2000, phi, random)) for _ in range(20)])) for phi in (0.0, 0.5, 0.9)
    ]
    assert lengths[0] < 4
    # Politis and White's best for AR(1): (6 n)^(1/3) (phi / (1 - phi^2))^(2/3), 17 and 64.
    assert lengths[1] == pytest.approx(17, rel=0.35)
    assert lengths[2] == pytest.approx(64, rel=0.35)


@pytest.mark.parametrize("series", [[], [1.0] * 50, [0.0, 1.0], list(range(6))])
def test_nothing_to_go_by_is_blocks_of_one(series: list[float]) -> None:
    assert block_length(np.array(series, dtype=float)) == 1


@given(st.lists(st.floats(-5, 5), min_size=8, max_size=200))
@example([0.0] * 8 + [1e-200])
@example([0.0] * 8 + [5e-324])
def test_a_block_is_never_longer_than_a_third(series: list[float]) -> None:
    assert 1 <= block_length(np.array(series)) <= -(-len(series) // 3)


@pytest.mark.parametrize("length", [1, 7, 100, 1000])
def test_a_resampled_run_is_as_large_as_the_run(length: int) -> None:
    cells = np.stack((np.ones(100), np.arange(100.0)), axis=1)
    totals = resample([cells], length, 400, np.random.default_rng(2))
    assert totals[:, 0] == pytest.approx(np.full(400, 100.0))
    assert totals[:, 1].mean() == pytest.approx(4950, rel=0.05)
    assert (totals[:, 1].std() > 0) == (length < 100), "a block as long as the run is the run"


def test_a_long_runs_neighbours_share_a_cell() -> None:
    owner, cells = cell_of(np.arange(3 * MAX_CELLS), 3 * MAX_CELLS)
    assert (cells, owner[2], owner[3], owner[-1]) == (MAX_CELLS, 0, 1, MAX_CELLS - 1)
    assert cell_of(np.arange(7), 7)[1] == 7


def test_percentiles_of_resampled_runs_lie_about_the_runs_own() -> None:
    random = np.random.default_rng(6)
    for values in (random.lognormal(size=300), random.lognormal(size=5000), np.repeat([0.1, 0.2, 0.3], 100)):
        run = PooledValues(values, np.arange(len(values)), len(values))
        found = resampled_percentiles([run], (0.5, 0.99), 1, 500, random)
        for level, replicates in found.items():
            assert np.quantile(replicates, 0.1) <= np.quantile(values, level) <= np.quantile(replicates, 0.9)
            assert values.min() <= replicates.min() <= replicates.max() <= values.max()


def test_a_request_keeps_all_of_its_gaps() -> None:
    """Ten requests of 1000 equal gaps each are ten samples of the median, not ten thousand."""
    levels = np.arange(1.0, 11.0)
    run = PooledValues(np.repeat(levels, 1000), np.repeat(np.arange(10), 1000), 10)
    replicates = resampled_percentiles([run], (0.5,), 1, 500, np.random.default_rng(7))[0.5]
    assert replicates.std() > 1


def test_the_interval_is_wider_where_runs_are_few() -> None:
    replicates = np.random.default_rng(8).normal(1.0, 0.1, 5000)
    low, high = interval(1.0, replicates, 0.95, 0)
    assert (low, high) == pytest.approx((0.804, 1.196), abs=0.02)
    lower, higher = interval(1.0, replicates, 0.95, 2)
    assert (1 - lower) / (1 - low) == pytest.approx(4.303 / 1.96, rel=0.01)
    assert (higher - 1) / (high - 1) == pytest.approx(4.303 / 1.96, rel=0.01)
