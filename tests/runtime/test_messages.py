"""What an engine refuses, in which words; and which sampling parameters mean greedy."""

from __future__ import annotations

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.messages import EngineLimits, GenerationRequest, SamplingConfig
from tests.fixtures.errors import raises

LIMITS = EngineLimits(vocabulary_size=512, max_seq_len=200, kv_block_tokens=32, kv_blocks=5, max_num_sequences=8)


REFUSED: list[tuple[GenerationRequest, str, str | tuple[str, ...]]] = [
    (GenerationRequest((), 4), "empty_prompt", "prompt"),
    (GenerationRequest((1,), 0), "invalid_parameter", "max_tokens is 0"),
    (GenerationRequest((1,), -7), "invalid_parameter", "max_tokens is -7"),
    (GenerationRequest((1, 512), 4), "invalid_token_ids", ("prompt_ids", "512")),
    (GenerationRequest((1,), 4, end_ids=(2, 512)), "invalid_token_ids", ("end_ids", "512")),
    (GenerationRequest((1, -1), 4), "invalid_token_ids", ("prompt_ids", "-1")),
    (GenerationRequest((1,) * 100, 61), "prompt_too_long", ("100", "max_tokens of 61", "161", "160")),
    (GenerationRequest((1,), 4, sampling=SamplingConfig(beam_width=9)), "invalid_parameter", ("beam_width is 9", "8")),
    (GenerationRequest((1,), 4, sampling=SamplingConfig(beam_width=0)), "invalid_parameter", ("beam_width is 0", "8")),
    (
        GenerationRequest((1,) * 60, 5, sampling=SamplingConfig(beam_width=2)),
        "prompt_too_long",
        ("60", "max_tokens of 5", "65", "64", "beam_width of 2"),
    ),
    (
        GenerationRequest((1,), 4, stop_ids=((1,) * 8000,), stop_texts=("a" * 100, "b" * 93)),
        "invalid_parameter",
        ("stop words", "8193", "8192"),
    ),
]
"""Requests that can't be served, with the code of the error and what it names."""


@pytest.mark.parametrize(("request_", "code", "named"), REFUSED)
def test_what_can_not_be_served_is_refused_in_one_sentence(
    request_: GenerationRequest, code: str, named: str | tuple[str, ...]
) -> None:
    with raises(RequestError, code, naming=named):
        LIMITS.check(request_)


def test_a_field_is_named_as_its_sender_calls_it() -> None:
    names = {"max_tokens": "request_output_len", "end_ids": "end_id"}
    for request, code, named in (
        (GenerationRequest((1,), 0), "invalid_parameter", "request_output_len is 0"),
        (GenerationRequest((1,), 500), "prompt_too_long", ("request_output_len of 500", "501")),
        (GenerationRequest((1,), 4, end_ids=(512,)), "invalid_token_ids", ("end_id", "token id 512")),
    ):
        with raises(RequestError, code, naming=named):
            LIMITS.check(request, names)


def test_what_just_fits_is_taken() -> None:
    LIMITS.check(GenerationRequest((0, 511), 1))
    LIMITS.check(GenerationRequest((1,) * 100, 60))
    LIMITS.check(GenerationRequest((1,) * 60, 4, sampling=SamplingConfig(beam_width=2)))
    LIMITS.check(GenerationRequest((1,), 4, stop_ids=((1,) * 8000,), stop_texts=("a" * 192,)))


def test_the_models_length_binds_where_the_cache_is_larger() -> None:
    limits = EngineLimits(vocabulary_size=512, max_seq_len=150, kv_block_tokens=32, kv_blocks=500, max_num_sequences=8)
    limits.check(GenerationRequest((1,) * 100, 50))
    with raises(RequestError, "prompt_too_long", naming="150"):
        limits.check(GenerationRequest((1,) * 100, 51))


@pytest.mark.parametrize(("tokens", "blocks"), [(2, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_a_begun_block_counts_whole(tokens: int, blocks: int) -> None:
    assert LIMITS.kv_blocks_for(GenerationRequest((1,) * (tokens - 1), 1)) == blocks


def test_each_beam_fills_blocks_of_its_own() -> None:
    request = GenerationRequest((1,) * 32, 1, sampling=SamplingConfig(beam_width=2))
    assert LIMITS.kv_blocks_for(request) == 4


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        (SamplingConfig(), True),
        (SamplingConfig(temperature=0.0), True),
        (SamplingConfig(temperature=0.0, top_k=50, top_p=0.9), True),
        (SamplingConfig(top_k=1), True),
        (SamplingConfig(temperature=1.0, top_k=1), True),
        (SamplingConfig(temperature=1.0), True),
        (SamplingConfig(temperature=1.0, top_p=1.0), False),
        (SamplingConfig(top_k=2), False),
        (SamplingConfig(top_p=0.9), False),
        (SamplingConfig(seed=3), True),
        (SamplingConfig(repetition_penalty=1.2), True),
    ],
)
def test_greedy_unless_asked_otherwise(sampling: SamplingConfig, greedy: bool) -> None:
    assert sampling.greedy is greedy
