from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.analysis.rate_search import RateSearch


def searched(search: RateSearch, keeps: Callable[[float, int], bool]) -> list[float]:
    """The rates that were tried; `keeps` is asked with the rate and how often it was tried before."""
    tried: list[float] = []
    while (rate := search.next()) is not None:
        search.record(rate, keeps(rate, tried.count(rate)))
        tried.append(rate)
    return tried


def test_it_doubles_until_the_promise_breaks_and_then_closes_in() -> None:
    search = RateSearch(4, max_runs=8)
    tried = searched(search, lambda rate, _: rate <= 13)
    assert tried[:3] == [4, 8, 16]
    assert search.converged
    assert search.highest is not None
    assert 13 / 1.1 <= search.highest <= 13
    assert len(tried) <= 8
    assert tried[-2:] == [search.highest, search.lowest_missed], "both sides of the edge were tried once more"
    assert search.confirmed


@given(first=st.floats(0.1, 100), ratio=st.floats(1 / 20, 20), tolerance=st.floats(0.02, 0.5))
def test_with_runs_enough_it_finds_any_limit_to_its_tolerance(first: float, ratio: float, tolerance: float) -> None:
    limit = first * ratio
    search = RateSearch(first, tolerance=tolerance, max_runs=30)
    tried = searched(search, lambda rate, _: rate <= limit)
    assert search.converged
    assert search.highest is not None
    assert search.highest <= limit <= search.highest * (1 + tolerance) * 1.000001
    assert len(tried) < 18


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_it_never_takes_more_runs_than_it_may(most: int) -> None:
    for limit in (0.001, 3, 10, 1e9):
        search = RateSearch(10, max_runs=most)
        assert len(searched(search, lambda rate, _, limit=limit: rate <= limit)) <= most  # type: ignore[misc]


def test_a_rate_that_broke_by_a_hiccup_is_tried_again_and_the_search_goes_on_above_it() -> None:
    hiccups = {8.0}
    search = RateSearch(4, max_runs=14)
    tried = searched(search, lambda rate, before: rate <= 13 and not (rate in hiccups and before == 0))
    assert tried.count(8.0) == 3, "broke once, held twice"
    assert search.highest is not None
    assert 13 / 1.1 <= search.highest <= 13


def test_a_rate_that_held_by_luck_is_tried_again_and_the_search_goes_on_below_it() -> None:
    search = RateSearch(4, max_runs=20)
    tried = searched(search, lambda rate, before: rate <= 13 or (rate == 16.0 and before == 0))
    assert tried.count(16.0) == 2, "held once, broke once"
    assert search.highest is not None
    assert 13 / 1.1 <= search.highest <= 13
    assert search.confirmed


def test_a_highest_rate_for_which_no_second_run_was_left_was_seen_once() -> None:
    search = RateSearch(4, max_runs=3)
    assert searched(search, lambda rate, _: rate <= 13) == [4, 8, 16]
    assert (search.highest, search.confirmed) == (8, False)


def test_whole_rates_close_in_on_neighbours_and_try_both_once_more() -> None:
    search = RateSearch(3.4, tolerance=0.01, max_runs=20, integral=True)
    assert searched(search, lambda rate, _: rate <= 7) == [3, 6, 12, 8, 7, 7, 8]
    assert (search.highest, search.lowest_missed) == (7, 8)
    assert search.converged
    assert search.confirmed


def test_whole_rates_that_disagree_get_a_run_that_decides() -> None:
    search = RateSearch(4, max_runs=20, integral=True)
    tried = searched(search, lambda rate, before: rate <= 4 or (rate == 5 and before != 1))
    assert tried.count(5) == 3, "held, broke, held"
    assert (search.highest, search.lowest_missed) == (5, 6)


@given(first=st.floats(0.1, 100), limit=st.integers(1, 400), tolerance=st.floats(0.001, 0.5))
def test_whole_rates_are_whole_and_end(first: float, limit: int, tolerance: float) -> None:
    search = RateSearch(first, tolerance=tolerance, max_runs=40, integral=True)
    tried = searched(search, lambda rate, _: rate <= limit)
    assert all(rate >= 1 and rate == int(rate) for rate in tried)
    assert len(tried) < 30
    assert search.converged
    assert search.highest is not None
    assert search.highest <= limit < max(search.highest + 2, search.highest * (1 + tolerance) * 1.000001)


def test_where_one_is_too_many_no_whole_rate_holds() -> None:
    search = RateSearch(4, integral=True)
    assert searched(search, lambda *_: False) == [4, 2, 1, 1]
    assert (search.highest, search.converged, search.confirmed) == (None, False, False)


@pytest.mark.parametrize(("softness", "above", "below"), [(0.06, 0.03, 0.06), (0.10, 0.08, 0.16)])
def test_where_the_edge_is_soft_it_seldom_ends_far_from_it(softness: float, above: float, below: float) -> None:
    """The edge is at 1; the sweep begins somewhat below it."""
    dice = random.Random(1)
    ends = []
    for _ in range(1000):
        search = RateSearch(dice.uniform(0.6, 0.9))
        searched(search, lambda rate, _: dice.random() < 1 / (1 + math.exp((rate - 1) / softness)))
        ends.append(search.highest or 0.0)
    assert sum(end > 1.1 for end in ends) / 1000 < above
    assert sum(end < 0.8 for end in ends) / 1000 < below


@pytest.mark.parametrize(
    ("results", "highest", "lowest_missed"),
    [
        # The search asks for none above one that broke, but an old sweep judged anew by another SLO may have such runs.
        ([(1, True), (2, False), (4, True)], 1, 2),
        ([(8, False), (8, True)], None, 8),
    ],
)
def test_a_rate_above_one_that_broke_or_that_broke_as_often_as_it_held_is_not_the_highest(
    results: list[tuple[float, bool]], highest: float | None, lowest_missed: float
) -> None:
    search = RateSearch(1)
    for rate, kept in results:
        search.record(rate, kept)
    assert (search.highest, search.lowest_missed) == (highest, lowest_missed)


def test_a_promise_that_never_holds_and_one_that_always_does() -> None:
    never, always = RateSearch(8, max_runs=4), RateSearch(8, max_runs=4)
    assert searched(never, lambda *_: False) == [8, 4, 2, 1]
    assert (never.highest, never.lowest_missed, never.converged) == (None, 1, False)
    assert searched(always, lambda *_: True) == [8, 16, 32, 64]
    assert (always.highest, always.lowest_missed, always.converged) == (64, None, False)
