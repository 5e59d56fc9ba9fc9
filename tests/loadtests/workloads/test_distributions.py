"""Distributions as people type them: what is drawn, what bounds do, and what is refused."""

import math
import random

import numpy as np
import numpy.typing as npt
import pytest

from loadtests.errors import LoadError
from loadtests.workloads.distributions import Distribution, parse_distribution, read_numbers, trace_reference
from tests.loadtests.workloads.example_traces import AZURE_2023, BURST_2, LONG, mooncake, row

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
"""`tests.loadtests.test_error_messages` has what is said of each."""


def test_the_file_of_a_distribution_is_found_also_with_commas_and_dots_in_its_name() -> None:
    assert trace_reference("trace:../a,b.csv#x,1..9") == "../a,b.csv#x"
    assert trace_reference("trace:../a,b.csv") == "../a,b.csv"
    assert trace_reference("normal:1,2") is None


@pytest.mark.parametrize(
    ("text", "reference", "field", "numbers"),
    [
        ("5\n\n7.5\n 9\n", "f", "input_tokens", [5, 7.5, 9]),
        ("5\n7", "f", "think_time", [5, 7]),
        ("length\n5\n7\n", "f#length", "input_tokens", [5, 7]),
        (AZURE_2023, "f", "input_tokens", [4800, 3100]),
        (AZURE_2023, "f", "output_tokens", [10, 8]),
        (BURST_2, "f", "turn_tokens", [900, 36]),
        (BURST_2, "f#Elapsed time", "cancel_after", [43, 2]),
        (mooncake(row(), row(into=9)), "f", "input_tokens", [700, 9]),
        ('{"wait": 0.5}\n{"wait": 2}\n', "f#wait", "think_time", [0.5, 2]),
    ],
)
def test_numbers_come_from_lines_or_a_column(text: str, reference: str, field: str, numbers: list[float]) -> None:
    assert read_numbers(text.encode(), reference, field) == numbers


@pytest.mark.parametrize(
    ("data", "reference", "field", "says"),
    [
        (b"", "f", "think_time", "f is empty"),
        (b"5\nmany\n", "f", "think_time", "f, line 2, has 'many' as the number"),
        (b"5\n-1\n", "f", "think_time", "f, line 2, has '-1' as the number"),
        (b"5\n\xff\n", "f", "think_time", "f, line 2, is not UTF-8"),
        (b"a,b\n1,2\n", "f", "think_time", "f has columns; name one, such as f#a; it has a, b"),
        (b"a,b\n1,2\n", "f#c", "think_time", "f has no column c; it has a, b"),
        (b"a,b\n1\n", "f#b", "think_time", "f, line 2, has None as the number"),
        (b"a,b\n1,2\n", "f", "input_tokens", "f has no column input_length or ContextTokens or Request tokens"),
        (b'{"a": 1}\n{"b": 1}\n', "f#a", "think_time", "f, line 2, has None as a"),
        (b'{"a": 1}\n\n{"b": 1}\n', "f#a", "think_time", "f, line 3, has None as a"),
        (b'{"a": 1}\n{"a": %d}\n' % (10**400), "f#a", "think_time", "f, line 2, has 1000"),
        (
            f'{{"a": {LONG}}}\n'.encode(),
            "f#a",
            "think_time",
            "f, line 1, can't be read: a number has thousands of digits",
        ),
        (f"5\n{LONG}\n".encode(), "f", "think_time", "f, line 2, has '1111"),
        (
            b"a,b\n1," + b"x" * 200_000,
            "f#a",
            "think_time",
            "f, line 2, is not valid CSV: field larger than field limit",
        ),
        (b'{"a": 1}\n', "f#b", "think_time", "f has no column b; it has a"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(data: bytes, reference: str, field: str, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        read_numbers(data, reference, field)
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) < 200
    assert caught.value.code == "workload_invalid"
