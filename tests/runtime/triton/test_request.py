"""How a request to `tensorrt_llm` is read, and what its prompts must share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.messages import EngineLimits, GenerationRequest, SamplingConfig
from inflight.runtime.triton.adapters import Adapters
from inflight.runtime.triton.request import (
    ResponseOptions,
    check_limits,
    check_parameters,
    generation_requests,
    response_options,
    with_content_seed,
)
from inflight.runtime.triton.word_tensors import pack
from tests.fixtures.errors import raises
from tests.runtime.triton.request_inputs import engine_inputs

LIMITS = EngineLimits(vocabulary_size=512, max_seq_len=200, kv_block_tokens=32, kv_blocks=50, max_num_sequences=8)
COMMON: dict[str, Any] = {
    "streaming": [[False], [True]],
    "exclude_input_in_output": [[False], [True]],
    "num_return_sequences": [[1], [2]],
    "beam_width": [[1], [2]],
    "return_log_probs": [[False], [True]],
    "output_log_probs": [[False], [True]],
    "return_perf_metrics": [[False], [True]],
}
"""What decides about a request's responses, as two prompts would have it differently."""


@pytest.mark.parametrize("name", COMMON)
def test_how_to_answer_is_the_same_for_all_prompts(name: str) -> None:
    with raises(RequestError, "invalid_request", naming=name):
        response_options(engine_inputs(2, **{name: COMMON[name]}), exclude_input=False)


def test_how_to_answer_is_read_of_all_prompts_together() -> None:
    same = {name: values[1:] * 2 for name, values in COMMON.items() if name != "beam_width"}
    expected = ResponseOptions(streaming=True, exclude_input=True, sequences=2, log_probs=True, perf_metrics=True)
    assert response_options(engine_inputs(2, **same), exclude_input=False) == expected
    assert response_options(engine_inputs(2), exclude_input=True) == ResponseOptions(exclude_input=True)


def test_upstreams_client_may_say_once_more_that_it_streams() -> None:
    check_parameters({"Streaming": True}, engine_inputs(streaming=[[True]]))
    check_parameters({"Streaming": True}, engine_inputs(stop=[[True]]))
    check_parameters({"Streaming": False}, engine_inputs())
    with raises(RequestError, "invalid_request", naming="Streaming"):
        check_parameters({"Streaming": True}, engine_inputs())


def test_several_answers_and_several_beams_do_not_go_together() -> None:
    with raises(RequestError, "invalid_parameter", naming=("num_return_sequences", "beam_width", "1")):
        response_options(engine_inputs(num_return_sequences=[[2]], beam_width=[[2]]), exclude_input=False)


def test_sampling_and_lengths_are_each_prompts_own() -> None:
    inputs = engine_inputs(2, request_output_len=[[3], [4]], seed=[[5], [6]], priority=[[0], [1]], end_id=[[-1], [7]])
    first, second = generation_requests(inputs, (1,), Adapters(0), "openvino", LIMITS)
    assert (first.max_tokens, first.sampling.seed, first.priority, first.end_ids) == (3, 5, 0, ())
    assert (second.max_tokens, second.sampling.seed, second.priority, second.end_ids) == (4, 6, 1, (7,))


def test_words_to_keep_out_and_biases_are_each_prompts_own() -> None:
    none, bias = pack([[], [(5, 6), (7,)]]), np.zeros((2, 9), np.float32)
    bias[1, [2, 8]] = 0.5, -1
    inputs = engine_inputs(2, bad_words_list=none, embedding_bias=bias)
    first, second = generation_requests(inputs, (1,), Adapters(0), "llmapi", LIMITS)
    assert (first.bad_ids, first.logit_bias) == ((), ())
    assert (second.bad_ids, second.logit_bias) == (((5, 6), (7,)), ((2, 0.5), (8, -1.0)))


@pytest.mark.parametrize("words", [np.zeros((1, 2, 3)), np.full((1, 2, 1), [[0], [-1]]), np.zeros((1, 2, 0))])
def test_no_words_are_said_in_several_ways(words: Any) -> None:
    inputs = engine_inputs(bad_words_list=words.astype(np.int32))
    (found,) = generation_requests(inputs, (1,), Adapters(0), "llmapi", LIMITS)
    assert found.bad_ids == ()


def test_words_whose_ends_do_not_fit_are_refused() -> None:
    inputs = engine_inputs(bad_words_list=np.array([[[5, 6], [3, -1]]], np.int32))
    with raises(RequestError, "invalid_request", naming=("bad_words_list", "3")):
        generation_requests(inputs, (1,), Adapters(0), "llmapi", LIMITS)


@pytest.mark.parametrize(
    ("values", "code", "named"),
    [
        ({"input_ids": [[5, 600]]}, "invalid_token_ids", "input_ids: token id 600"),
        ({"end_id": [[512]]}, "invalid_token_ids", "end_id: token id 512"),
        ({"request_output_len": [[0]]}, "invalid_parameter", "request_output_len is 0"),
        ({"request_output_len": [[300]]}, "prompt_too_long", ("request_output_len of 300", "302")),
        ({"request_output_len": [[300]]}, "prompt_too_long", "lower request_output_len"),
        ({"request_output_len": [[0]], "stream_key": [[1]]}, "invalid_parameter", "max_tokens is 0"),
    ],
)
def test_what_the_engine_can_not_take_is_named_as_its_sender_knows_it(
    values: dict[str, Any], code: str, named: str | tuple[str, ...]
) -> None:
    inputs = engine_inputs(1, **{name: np.array(value, np.int32) for name, value in values.items()})
    with raises(RequestError, code, naming=named):
        check_limits(inputs, generation_requests(inputs, (1,), Adapters(0), "openvino", LIMITS), LIMITS)


def test_what_the_engine_can_take_passes() -> None:
    inputs = engine_inputs(2, end_id=np.array([[511], [0]], np.int32))
    check_limits(inputs, generation_requests(inputs, (1,), Adapters(0), "openvino", LIMITS), LIMITS)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"input_ids": np.zeros((1, 201)), "input_lengths": [[201]]}, "prompt_too_long"),
        (
            {"input_ids": np.zeros((1, 201)), "input_lengths": [[201]], "request_output_len": [[-300]]},
            "prompt_too_long",
        ),
        ({"embedding_bias": np.ones((1, 513))}, "invalid_token_ids"),
        ({"stop_words_list": [[[5] * 257, range(1, 258)]]}, "invalid_parameter"),
        ({"stop_words_list": [[[5] * 1025, [1025] + [-1] * 1024]]}, "invalid_parameter"),
    ],
)
def test_what_is_too_long_is_refused_before_a_list_is_made_of_it(values: dict[str, Any], code: str) -> None:
    """Also where only its shape says so: the deployment's other requests wait meanwhile."""
    inputs = engine_inputs(1, **{name: np.array(value, np.int32) for name, value in values.items()})
    with raises(RequestError, code):
        generation_requests(inputs, (1,), Adapters(0), "llmapi", LIMITS)


def test_padding_behind_what_is_sent_may_be_of_any_length() -> None:
    words = np.full((1, 2, 5000), -1, np.int32)
    words[0, :, 0] = 5, 1
    inputs = engine_inputs(1, stop_words_list=words, input_ids=np.zeros((1, 5000), np.int32))
    (found,) = generation_requests(inputs, (1,), Adapters(0), "llmapi", LIMITS)
    assert (found.stop_ids, found.prompt_ids) == (((5,),), (0, 0))


def test_the_answers_to_all_prompts_of_a_request_are_bounded_together() -> None:
    assert response_options(engine_inputs(4, num_return_sequences=[[64]] * 4), exclude_input=False).sequences == 64
    with raises(RequestError, "invalid_parameter"):
        response_options(engine_inputs(4, num_return_sequences=[[65]] * 4), exclude_input=False)


def test_seeds_follow_from_the_prompt_and_the_sampling_parameters() -> None:
    request = GenerationRequest((1, 2, 3), 5, sampling=SamplingConfig(temperature=0.7, top_p=0.9))
    seeds = [
        with_content_seed(each).sampling.seed
        for each in (
            request,
            replace(request, max_tokens=9, priority=3),
            replace(request, prompt_ids=(1, 2, 4)),
            replace(request, sampling=replace(request.sampling, temperature=0.8)),
        )
    ]
    assert seeds[0] == seeds[1]
    assert len({*seeds}) == 3
    assert with_content_seed(replace(request, sampling=SamplingConfig(seed=7))).sampling.seed == 7
