"""Distributions as people type them: what is drawn, what bounds do, and what is refused."""

import math
import random

import numpy as np
import numpy.typing as npt
import pytest

from loadtests.errors import LoadError
from loadtests.workloads.distributions import Distribution, parse_distribution, trace_reference
from tests.fixtures.errors import raises

DRAWS = 20_000


def made(text: str) -> Distribution:
    return parse_distribution(text, "input_tokens", lambda reference: [10.0, 20.0, 600.0])


def numbers(text: str) -> npt.NDArray[np.float64]:
    source = random.Random(1)
    found = made(text)
    return np.array([found.draw_number(source) for _ in range(DRAWS)])


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("128", 128, 0),
        ("fixed:128", 128, 0),
        ("uniform:16,256", 136, 240 / 12**0.5),
        ("normal:128,32", 128, 32),
        ("exponential:2.5", 2.5, 2.5),
        ("lognormal:128,0.5", 128 * math.exp(0.125), 128 * math.exp(0.125) * (math.exp(0.25) - 1) ** 0.5),
        ("trace:file", 210, np.std([10, 20, 600])),
    ],
)
def test_mean_and_deviation_are_those_of_the_distribution(text: str, mean: float, deviation: float) -> None:
    found = numbers(text)
    assert found.mean() == pytest.approx(mean, abs=4 * deviation / DRAWS**0.5)
    assert found.std() == pytest.approx(deviation, rel=0.05, abs=1e-9)


def test_the_first_number_of_a_lognormal_is_its_median() -> None:
    assert np.median(numbers("lognormal:128,0.5")) == pytest.approx(128, rel=0.02)


def test_bounds_clip() -> None:
    found = numbers("normal:100,50,80..120")
    assert (found.min(), found.max()) == (80, 120)
    assert (found == 80).mean() == pytest.approx(0.3446, abs=0.02)
    assert numbers("exponential:5,2..").min() == 2
    assert numbers("exponential:5,..9").max() == 9
    assert set(numbers("trace:file,..100")) == {10, 20, 100}


def test_nothing_is_negative_and_whole_numbers_begin_at_one() -> None:
    assert numbers("normal:0,10").min() == 0
    source = random.Random(1)
    assert {made("0").draw_integer(source), made("0.4").draw_integer(source)} == {1}
    assert made("2.5").draw_integer(source) == 3


def test_each_whole_number_of_a_uniform_one_is_as_likely() -> None:
    source = random.Random(1)
    found = made("uniform:1,4")
    counts = np.bincount([found.draw_integer(source) for _ in range(DRAWS)])
    assert len(counts) == 5
    assert counts[1:] / DRAWS == pytest.approx(0.25, abs=0.02)


def test_a_lower_maximum_holds() -> None:
    assert made("100,80..").at_most(50).draw_number(random.Random(1)) == 50
    assert made("lognormal:9999999,10").draw_number(random.Random(3)) <= 10_000_000


INVALID = (
    *("", "many", "-5", "nan", "normal:5", "normal:5,6,7", "pareto:5,6"),
    *("uniform:9,3", "5,9..3", "lognormal:0,1", "1000000000000"),
)


@pytest.mark.parametrize("text", INVALID)
def test_what_is_no_distribution_is_refused_in_one_sentence(text: str) -> None:
    with raises(LoadError, "workload_invalid", naming=("input_tokens", repr(text))):
        made(text)


def test_the_file_of_a_distribution_is_found_also_with_commas_and_dots_in_its_name() -> None:
    assert trace_reference("trace:../a,b.csv#x,1..9") == "../a,b.csv#x"
    assert trace_reference("trace:../a,b.csv") == "../a,b.csv"
    assert trace_reference("normal:1,2") is None
