"""Which sampling values are taken, and in which words others are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine.request_values import (
    MAX_SEQUENCES,
    SAMPLING_INPUTS,
    check_ids,
    check_sampling,
    checked_count,
    deadline_from,
    end_ids_from,
    guide_from,
    read_sequences,
    sampling_from,
)
from inflight.runtime.messages import DecodingGuide, GuideType, SamplingConfig
from tests.fixtures.errors import raises


def test_nothing_given_is_greedy_and_changes_no_logit() -> None:
    assert sampling_from({}) == SamplingConfig()
    assert sampling_from(dict.fromkeys(SAMPLING_INPUTS)) == SamplingConfig()
    assert sampling_from({}).greedy


def test_every_value_finds_its_place() -> None:
    values = {
        "temperature": 0.5,
        "runtime_top_k": 40,
        "runtime_top_p": 0.25,
        "seed": 2**64 - 1,
        "repetition_penalty": 1.25,
        "presence_penalty": -2.0,
        "frequency_penalty": 2.0,
        "min_tokens": 3,
        "beam_width": 2,
        "len_penalty": -0.5,
        "early_stopping": False,
    }
    assert sampling_from(values) == SamplingConfig(
        temperature=0.5,
        top_k=40,
        top_p=0.25,
        seed=2**64 - 1,
        repetition_penalty=1.25,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        min_tokens=3,
        beam_width=2,
        length_penalty=-0.5,
        early_stopping=False,
    )


OUT_OF_BOUNDS = [
    *(("temperature", -0.5), ("temperature", math.nan), ("temperature", math.inf)),
    *(("runtime_top_k", -1), ("runtime_top_p", 1.5), ("runtime_top_p", -math.inf)),
    *(("repetition_penalty", 0.0), ("presence_penalty", 2.5), ("frequency_penalty", -3.0), ("min_tokens", -1)),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_BOUNDS)
def test_a_value_out_of_bounds_is_named(name: str, value: float) -> None:
    with raises(RequestError, "invalid_parameter", naming=f"{name} is {value:g}"):
        sampling_from({name: value})


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (SamplingConfig(top_k=-3), "top_k is -3"),
        (SamplingConfig(top_p=1.5), "top_p is 1.5"),
        (SamplingConfig(top_p=-0.5), "top_p is -0.5"),
        (SamplingConfig(length_penalty=math.inf), "length_penalty is inf"),
    ],
)
def test_a_field_out_of_bounds_is_named(sampling: SamplingConfig, named: str) -> None:
    with raises(RequestError, "invalid_parameter", naming=named):
        check_sampling(sampling)


def test_fields_within_their_bounds_pass() -> None:
    check_sampling(SamplingConfig())
    check_sampling(SamplingConfig(0.5, 5, 0.9, 2**64 - 1, 1.1, 0.5, -0.5, 0.1, 2, 4, -1.0, early_stopping=False))


@pytest.mark.parametrize("name", SAMPLING_INPUTS)
def test_what_is_no_number_never_passes(name: str) -> None:
    for value in (math.nan, math.inf, -math.inf):
        with raises(RequestError, "invalid_parameter", naming=name):
            sampling_from({name: value})


def test_a_top_p_below_0_is_none_as_upstream_has_it() -> None:
    assert sampling_from({"runtime_top_p": -0.5}) == SamplingConfig(top_p=0.0)


def test_bounds_hold_for_numbers_that_came_as_fp32() -> None:
    for value in (1e-6, 0.1, 1.0):
        assert sampling_from({"repetition_penalty": np.float32(value).item()}).repetition_penalty > 0


@pytest.mark.parametrize(
    ("end_id", "of_model", "expected"),
    [
        (None, (1, 7), (1, 7)),
        (7, (1, 7), (1, 7)),
        (9, (1, 7), (9,)),
        (0, (), (0,)),
        (-1, (1, 7), ()),
        (None, (), ()),
    ],
)
def test_end_ids_are_the_models_unless_the_request_names_another(
    end_id: int | None, of_model: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert end_ids_from(end_id, of_model) == expected


def cut(tokens: Any, lengths: Any, most_ids: int = 100) -> Any:
    return read_sequences(np.array(tokens, np.int32), np.array(lengths, np.int32), 8, most_ids)


def test_sequences_are_cut_to_their_lengths() -> None:
    assert cut([[[1, 2, 3], [4, 5, -1]]], [[3, 2]]) == [[[1, 2, 3], [4, 5]]]
    assert cut([[[1, 2]], [[3, 4]]], [[1], [2]]) == [[[1]], [[3, 4]]]
    assert cut(np.zeros((1, 1, 0)), [[0]]) == [[[]]]


@pytest.mark.parametrize(
    ("tokens", "lengths", "code"),
    [
        ([[[1]], [[2]]], [[1]], "invalid_request"),
        ([[[1], [2]]], [[1]], "invalid_request"),
        ([[[1, 2]]], [[3]], "invalid_request"),
        ([[[1, 2]]], [[-1]], "invalid_request"),
        ([[[1, 8]]], [[2]], "invalid_token_ids"),
        ([[[0] * 101]], [[1]], "invalid_parameter"),
        (np.zeros((1, MAX_SEQUENCES + 1, 0)), np.zeros((1, MAX_SEQUENCES + 1)), "invalid_parameter"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(tokens: Any, lengths: Any, code: str) -> None:
    with raises(RequestError, code):
        cut(tokens, lengths)


@pytest.mark.parametrize("token_id", [-1, 8, 2**31 - 1])
def test_an_id_that_the_vocabulary_does_not_have_is_refused(token_id: int) -> None:
    check_ids([], "ids", 8)
    check_ids([0, 7], "ids", 8)
    with raises(RequestError, "invalid_token_ids", naming=("ids", f"token id {token_id}")):
        check_ids([3, token_id, 4], "ids", 8)


def test_an_input_is_named_as_its_sender_knows_it() -> None:
    with raises(RequestError, "invalid_parameter", naming=("top_k", "-1", "0")):
        sampling_from({"runtime_top_k": -1}, label={"runtime_top_k": "top_k"}.__getitem__)


@pytest.mark.parametrize(
    ("guide_type", "text", "guide"),
    [
        (None, None, None),
        ("json", None, DecodingGuide(GuideType.JSON)),
        ("regex", "[a-z]+", DecodingGuide(GuideType.REGEX, "[a-z]+")),
        ("json_schema", "{}", DecodingGuide(GuideType.JSON_SCHEMA, "{}")),
        ("ebnf_grammar", 'root ::= "a"', DecodingGuide(GuideType.EBNF_GRAMMAR, 'root ::= "a"')),
    ],
)
def test_a_guide_is_made_of_its_type_and_text(
    guide_type: str | None, text: str | None, guide: DecodingGuide | None
) -> None:
    assert guide_from(guide_type, text) == guide


@pytest.mark.parametrize(
    ("guide_type", "text", "words"),
    [
        ("yaml", "a", ("guided_decoding_guide_type", "'yaml'", "json, json_schema, regex, ebnf_grammar")),
        ("regex", None, ("guided_decoding_guide", "guided_decoding_guide_type regex")),
        ("json", "{}", ("guided_decoding_guide_type json", "json_schema")),
        (None, "a", ("guided_decoding_guide", "guided_decoding_guide_type")),
    ],
)
def test_what_is_no_guide_is_refused(guide_type: str | None, text: str | None, words: str) -> None:
    with raises(RequestError, "invalid_parameter", naming=words):
        guide_from(guide_type, text)


def test_a_deadline_counts_from_now() -> None:
    assert deadline_from(None, 5) is None
    assert deadline_from(3, 5) == 3_000_005
    with raises(RequestError, "invalid_parameter", naming=("deadline_ms", "0", "1")):
        deadline_from(0, 5)


def test_a_count_has_bounds() -> None:
    assert checked_count("n", 1, 4) == 1
    for value in (0, -1, 5):
        with raises(RequestError, "invalid_parameter", naming=("n", str(value))):
            checked_count("n", value, 4)
