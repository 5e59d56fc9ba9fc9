"""Responses find their answers by their indices, in whatever order they come; what can't be paired ends the request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.runtime.messages import RequestError
from inflight.runtime.triton.bls.last_responses import LastResponses, only_response
from tests.fixtures.errors import raises


def last(**indices: int) -> dict[str, Any]:
    return {**{name: np.array([[index]]) for name, index in indices.items()}, "finish_reason": np.array([[b"stop"]])}


def test_each_answer_gets_its_own_whatever_the_order() -> None:
    lasts = LastResponses(prompts=2, sequences=2)
    pairs = [(1, 0), (0, 1), (1, 1), (0, 0)]
    came = {row * 2 + sequence: last(batch_index=row, sequence_index=sequence) for row, sequence in pairs}
    responses = iter(came.values())
    assert [lasts.take_last(number, responses) is came[number] for number in (3, 0, 2, 1)] == [True] * 4


@pytest.mark.parametrize(
    ("prompts", "sequences", "came"),
    [
        (2, 1, [last()]),
        (1, 2, [last(batch_index=0)]),
        (2, 1, [last(batch_index=2)]),
        (2, 1, [last(batch_index=-1)]),
        (2, 1, [last(batch_index=1), last(batch_index=1)]),
        (2, 1, [last(batch_index=1)]),
        (2, 1, [{"batch_index": np.array([[0]])}]),
        (1, 1, [{}]),
        (1, 1, []),
    ],
)
def test_what_can_not_be_paired_fails(prompts: int, sequences: int, came: list[dict[str, Any]]) -> None:
    with raises(RequestError, "answer_damaged"):
        LastResponses(prompts, sequences).take_last(0, iter(came))


def test_an_answer_is_not_given_twice() -> None:
    lasts = LastResponses(1, 1)
    responses = iter([last(), last()])
    lasts.take_last(0, responses)
    with pytest.raises(RequestError):
        lasts.take_last(0, responses)


def test_the_only_response_is_alone() -> None:
    assert only_response(iter([last(), {}])) == last()
    for count in (0, 2):
        with pytest.raises(RequestError):
            only_response(iter([last()] * count))
