"""In which order rows are asked."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from inflight.batch.dispatch.prefix_order import SHARED_PREFIX_CHARACTERS, order_by_prefix
from inflight.batch.job.rows import GenerateRequest, Row
from tests.batch.scripted_backend import text_of


def rows(*asks: tuple[str, int]) -> list[Row]:
    return [
        Row(number, number + 1, str(number), GenerateRequest(prompt, tokens))
        for number, (prompt, tokens) in enumerate(asks)
    ]


def order(*asks: tuple[str, int]) -> list[int]:
    return [row.number for row in order_by_prefix(rows(*asks))]


SHARED = "s" * SHARED_PREFIX_CHARACTERS


@pytest.mark.parametrize(
    ("asks", "numbers"),
    [
        ((("short", 4), ("short too", 100), ("long " * 1000, 4), ("short", 50)), [2, 1, 3, 0]),
        (((SHARED + "a", 5), (SHARED + "b", 90), (SHARED + "c", 40)), [1, 2, 0]),
        ([("Describe: " + letter * 10, tokens) for letter, tokens in (("a", 1), ("b", 100), ("c", 50))], [1, 2, 0]),
        ([("x" * 100_000, number) for number in range(5)], [4, 3, 2, 1, 0]),
        (
            [("i" * 400 + "abc"[number % 3] * 400 + str(number), number) for number in range(12)],
            [11, 8, 5, 2, 10, 7, 4, 1, 9, 6, 3, 0],
        ),
    ],
    ids=["of all", "of a group", "a short beginning is none", "alike for very long", "groups in a group"],
)
def test_the_longest_work_goes_first(asks: Sequence[tuple[str, int]], numbers: list[int]) -> None:
    assert order(*asks) == numbers


def test_rows_that_begin_alike_stand_side_by_side() -> None:
    tea, coffee = "tea " * 100, "coffee " * 100
    asks = [(f"{(tea, coffee)[number % 2]}{number}", 10) for number in range(20)]
    beginnings = [text_of(row.request)[:3] for row in order_by_prefix(rows(*asks))]
    assert beginnings == ["cof"] * 10 + ["tea"] * 10


def test_conversations_are_put_together_by_what_they_begin_with() -> None:
    system = [{"role": "system", "content": content * 300} for content in "xy"]
    prompts = [[system[number % 2], {"role": "user", "content": str(number)}] for number in range(8)]
    made = [Row(number, number, str(number), GenerateRequest(prompt, 8)) for number, prompt in enumerate(prompts)]
    assert [row.number % 2 for row in order_by_prefix(made)] in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)


def test_every_row_is_there_once_and_equal_ones_keep_their_order() -> None:
    draw = random.Random(1)
    asks = [("p" * draw.choice([10, 300]) + str(draw.randint(0, 9)), draw.randint(1, 9)) for _ in range(2000)]
    numbers = order(*asks)
    assert sorted(numbers) == list(range(2000))
    assert order(*[("same", 1)] * 50) == list(range(50))


def test_it_takes_little_time() -> None:
    draw = random.Random(2)
    made = rows(*[("".join(draw.choices("abcdef", k=200)), draw.randint(1, 99)) for _ in range(20_000)])
    began = time.process_time()
    order_by_prefix(made)
    assert (time.process_time() - began) / len(made) < 50e-6  # about 3 on the machine where it was written
