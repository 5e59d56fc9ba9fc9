"""The context of a stream whose chunks come without it, and the ids that distinguish such streams."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.runtime.streams.context_cache import ContextCache
from inflight.runtime.streams.sequence_ids import is_unary, sequence_id_factory
from inflight.text.detokenizer import CONTEXT_TOKENS, Detokenizer
from tests.text.example_tokenizers import tokenizer_of

TEXTS = ["the tea  and two, the tin.", "抹茶ラテは京都の宇治から。", "a family 👩‍👩‍👧‍👦 and ❤️‍🔥 "]


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("kind", ["llama_2", "byte_level"])
def test_mixed_streams_say_what_each_says_alone(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    detokenizer = Detokenizer(tokenizer)
    tails = ContextCache(detokenizer.special_token_ids)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    said = [""] * len(TEXTS)
    for position in range(max(map(len, ids))):
        # All chunks of a step are decoded in one call.
        streams = [number for number, tokens in enumerate(ids) if position < len(tokens)]
        chunks = [tails.next_chunk(("id", number), ids[number][position : position + 1]) for number in streams]
        for number, text in zip(streams, detokenizer.texts(chunks), strict=True):
            said[number] += text
    assert said == [tokenizer.decode(tokens) for tokens in ids]


def test_two_chunks_of_one_stream_may_come_at_once() -> None:
    tails = ContextCache()
    chunks = [tails.next_chunk("a", [number]) for number in range(3)]
    assert [list(chunk.context_ids) for chunk in chunks] == [[], [0], [0, 1]]


def test_only_so_much_is_kept_of_a_stream_and_nothing_that_says_nothing() -> None:
    tails = ContextCache(frozenset({7}))
    for number in range(100, 100 + 2 * CONTEXT_TOKENS):
        tails.next_chunk("a", [number, 7])
    last = 100 + 2 * CONTEXT_TOKENS
    assert list(tails.next_chunk("a", [1]).context_ids) == list(range(last - CONTEXT_TOKENS, last))


def test_a_stream_that_is_silent_for_long_is_forgotten_and_the_others_are_not() -> None:
    clock = ManualClock()
    tails = ContextCache(idle_seconds=10, now=clock)
    tails.next_chunk("left", [1])
    tails.next_chunk("slow", [1])
    clock.seconds = 8
    tails.next_chunk("slow", [2])
    clock.seconds = 16
    assert list(tails.next_chunk("slow", [3]).context_ids) == [1, 2]
    assert len(tails) == 1


def test_of_too_many_streams_the_one_that_was_silent_longest_is_forgotten() -> None:
    tails = ContextCache(max_streams=2)
    for stream in ("a", "b", "a", "c"):
        tails.next_chunk(stream, [1])
    assert [len(tails.next_chunk(stream, [2]).context_ids) for stream in ("a", "c")] == [2, 1]
    assert len(tails) == 2


class ParameterResponse:
    """As python models have it from Triton 25.02 on."""

    def __init__(self, output_tensors: list[Any], error: Any = None, parameters: dict[str, Any] | None = None) -> None:
        self.parameters = parameters


class PlainResponse:
    def __init__(self, output_tensors: list[Any], error: Any = None) -> None:
        pass


@pytest.mark.parametrize("streams", [True, False])
def test_each_response_gets_a_name_of_its_own_that_is_a_sequence_id(streams: bool) -> None:
    name = sequence_id_factory(ParameterResponse)
    said = [ParameterResponse([], **name(streams)).parameters for _ in range(1000)]
    numbers = {parameters["sequence_id"] for parameters in said if parameters is not None}
    assert len(numbers) == 1000
    assert all(type(number) is int and 0 < number < 2**63 for number in numbers)
    assert {is_unary(number) for number in numbers} == {not streams}


def test_names_that_clients_give_say_nothing_of_their_answers() -> None:
    assert not any(map(is_unary, (0, 1, 2**32, "", "a name", str(2**62))))


def test_where_responses_have_no_parameters_there_are_no_names() -> None:
    PlainResponse([], **sequence_id_factory(PlainResponse)(True))
    assert sequence_id_factory(PlainResponse)(False) == {}
