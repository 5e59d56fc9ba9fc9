"""What can't be done is refused by name, only when it is really used; and what one response holds, or can't."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from inflight.deploy.server.server import Server
from inflight.runtime.triton.unsupported_inputs import UNSUPPORTED_INPUTS
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import ENDLESS, paced
from tests.serving.metrics_page import page_when
from tests.serving.model_replies import (
    BLS,
    DIRECT,
    ENSEMBLE,
    MODELS,
    TEXT_MODELS,
    ask,
    ids_of,
    message,
    once,
    prompt_for,
    refusal,
    rows,
    text_of,
    whole,
    words,
)
from tests.serving.raw_requests import TIMEOUT, GrpcConnection, post

PROMPT = "The quick brown fox"

USED_DIRECT: dict[str, Any] = {
    "return_context_logits": True,
    "return_generation_logits": True,
    "prompt_embedding_table": np.ones((1, 2, 8), np.float16),
    "prompt_table_extra_ids": rows(3, dtype=np.uint64),
    "prompt_vocab_size": rows(8),
    "mrope_rotary_cos_sin": np.ones((1, 4), np.float32),
    "mrope_position_deltas": rows(1, dtype=np.int64),
    "encoder_input_features": np.ones((1, 2, 8), np.float16),
    "encoder_output_lengths": rows(2),
    "decoder_input_ids": np.array([[1, 2]], np.int32),
    "cross_attention_mask": np.ones((1, 2, 2), np.bool_),
    "skip_cross_attn_blocks": rows(True, dtype=np.bool_),
    "draft_input_ids": rows(3),
    "draft_logits": np.ones((1, 2, 8), np.float32),
    "draft_acceptance_threshold": rows(0.5, dtype=np.float32),
    "beam_search_diversity_rate": rows(0.5, dtype=np.float32),
    "runtime_top_p_decay": rows(0.9, dtype=np.float32),
    "lora_weights": np.ones((1, 2, 8), np.float16),
    "lora_config": np.ones((1, 2, 3), np.int32),
    "context_phase_params": np.ones((1, 4), np.uint8),
    "lookahead_window_size": rows(7),
    "lookahead_ngram_size": rows(7),
    "lookahead_verification_set_size": rows(7),
    "retention_token_range_starts": rows(3),
    "retention_token_range_ends": rows(5),
    "retention_token_range_priorities": rows(90),
    "retention_token_range_durations_ms": rows(1000),
    "retention_decode_priority": rows(90),
    "retention_decode_duration_ms": rows(1000),
}
"""A value for each input of the engine's model that it can't honour."""

NEUTRAL_DIRECT: dict[str, Any] = {
    "bad_words_list": np.array([[[0], [-1]]], np.int32),
    "embedding_bias": np.zeros((1, 4), np.float32),
    "return_context_logits": False,
    "return_generation_logits": False,
    "prompt_vocab_size": rows(0),
    "prompt_table_extra_ids": np.zeros((1, 5), np.uint64),
    "decoder_input_ids": rows(1),
    "beam_search_diversity_rate": rows(0, dtype=np.float32),
    "runtime_top_p_decay": rows(1, dtype=np.float32),
    "runtime_top_p_min": rows(1e-6, dtype=np.float32),
    "draft_acceptance_threshold": rows(0, dtype=np.float32),
    "draft_input_ids": np.zeros((1, 0), np.int32),
    **{f"lookahead_{name}": rows(0) for name in ("window_size", "ngram_size", "verification_set_size")},
    **{f"retention_token_range_{name}": rows(0) for name in ("starts", "ends", "priorities", "durations_ms")},
    "retention_decode_priority": rows(35),
    "retention_decode_duration_ms": rows(0),
    "prompt_embedding_table": np.zeros((1, 2, 8), np.float16),
    "mrope_rotary_cos_sin": np.zeros((1, 4), np.float32),
    "mrope_position_deltas": rows(0, dtype=np.int64),
    "encoder_input_features": np.zeros((1, 2, 8), np.float16),
    "encoder_output_lengths": rows(0),
    "cross_attention_mask": np.zeros((1, 2, 2), np.bool_),
    "skip_cross_attn_blocks": rows(False, dtype=np.bool_),
    "draft_logits": np.zeros((1, 2, 8), np.float32),
    "lora_weights": np.zeros((1, 2, 8), np.float16),
    "lora_config": np.zeros((1, 2, 3), np.int32),
    "context_phase_params": np.zeros((1, 4), np.uint8),
}
"""What asks for nothing: nothing itself, zeros, or upstream's own default."""

USED_TEXT: dict[str, Any] = {
    "decoder_text_input": "again",
    "return_context_logits": True,
    "return_generation_logits": True,
    "prompt_embedding_table": np.ones((1, 2, 8), np.float16),
    "prompt_table_extra_id": rows(3, dtype=np.uint64),
    "prompt_vocab_size": rows(8),
    "lora_weights": np.ones((1, 2, 8), np.float16),
    "lora_config": np.ones((1, 2, 3), np.int32),
}
"""A value for each input of the ensemble that its models can't honour."""

USED_BLS: dict[str, Any] = {
    **USED_TEXT,
    "image_input": np.zeros((1, 1, 3, 2, 2), np.float16),
    "image_bytes_input": np.zeros((1, 1, 2, 2, 3), np.uint8),
    "image_url_input": "http://example.com/a.png",
    "video_bytes_input": np.zeros((1, 1, 2, 2, 3), np.uint8),
    "num_draft_tokens": rows(3),
    "use_draft_logits": True,
}

NEUTRAL_TEXT: dict[str, Any] = {
    "decoder_text_input": "",
    "bad_words": words(""),
    "return_context_logits": False,
    "return_generation_logits": False,
    "prompt_table_extra_id": rows(0, dtype=np.uint64),
    "prompt_vocab_size": rows(0),
    "prompt_embedding_table": np.zeros((1, 2, 8), np.float16),
    "embedding_bias_words": words("", ""),
    "embedding_bias_weights": np.zeros((1, 1), np.float32),
    "lora_task_id": 0,
    "lora_weights": np.zeros((1, 2, 8), np.float16),
    "lora_config": np.zeros((1, 2, 3), np.int32),
    "guided_decoding_guide_type": "",
    "guided_decoding_guide": "",
}


INFER = {
    "inputs": [
        {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [PROMPT]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [3]},
    ]
}
"""A request as the KServe protocol has it."""


@pytest.fixture(scope="module")
def single_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Not decoupled: one response to each request, one request at a time, and one may wait.

    Prompts are left out of answers unless a request wants them.
    """
    options = paced()
    parameters = {DIRECT: {**options.parameters[DIRECT], "exclude_input_in_output": "true"}}
    options = replace(options, decoupled=False, max_num_sequences=1, max_queue_size=1, parameters=parameters)
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


def test_there_is_a_value_for_every_input_that_is_not_supported() -> None:
    assert set(USED_DIRECT) == set(UNSUPPORTED_INPUTS["openvino"])
    assert set(UNSUPPORTED_INPUTS["openvino"]) <= set(NEUTRAL_DIRECT)
    assert [name for name, value in USED_DIRECT.items() if not np.any(value)] == []


@pytest.mark.parametrize("name", USED_DIRECT)
def test_the_engines_model_refuses_it_by_name(paced_server: Server, name: str) -> None:
    error = refusal(paced_server, DIRECT, ids_of(paced_server.engine, PROMPT), 4, **{name: USED_DIRECT[name]})
    assert error.startswith(f"{name} is not supported"), error
    assert error.endswith("[unsupported_input]")


@pytest.mark.parametrize(("model", "name"), [*((ENSEMBLE, n) for n in USED_TEXT), *((BLS, n) for n in USED_BLS)])
def test_text_models_refuse_it_by_the_name_that_their_client_knows(paced_server: Server, model: str, name: str) -> None:
    values = {name: USED_BLS[name]}
    error = refusal(paced_server, model, PROMPT, 4, **values)
    assert re.search(rf"\b{name} is not supported", error), error
    assert "[unsupported_input]" in error


def test_neutral_values_ask_the_engines_model_for_nothing(paced_server: Server) -> None:
    prompt = ids_of(paced_server.engine, PROMPT)
    (reply,) = ask(paced_server, DIRECT, prompt, 4, **NEUTRAL_DIRECT, exclude_input_in_output=True)
    assert reply.token_ids == prompt[:4]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_neutral_values_ask_text_models_for_nothing(paced_server: Server, model: str) -> None:
    (reply,) = ask(paced_server, model, PROMPT, 5, **NEUTRAL_TEXT, exclude_input_in_output=True)
    assert reply.text == PROMPT


@pytest.mark.parametrize("model", MODELS)
def test_without_decoupling_an_answer_comes_in_one_response(single_server: Server, model: str) -> None:
    reply = once(single_server, message(model, prompt_for(single_server, model, PROMPT), 7))
    told = ids_of(single_server.engine, PROMPT)
    told = [*told, *told[:2]]
    assert whole([reply], model) == (told if model == DIRECT else text_of(single_server.engine, tuple(told)))
    assert (reply.finish_reason, reply.number("num_responses")) == ("length", 1)


@pytest.mark.parametrize("model", MODELS)
def test_whether_the_prompt_is_left_out_says_the_request_before_the_deployment(
    single_server: Server, model: str
) -> None:
    prompt = prompt_for(single_server, model, PROMPT)
    reply = once(single_server, message(model, prompt, 5, exclude_input_in_output=False, return_token_ids=True))
    own = ids_of(single_server.engine, PROMPT)
    assert reply.tensors["token_ids"].tolist() == [[own]]
    told = own * 2
    assert whole([reply], model) == (told if model == DIRECT else text_of(single_server.engine, tuple(told)))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"stream": True}, "Streaming is only supported if model is deployed using decoupled mode."),
        ({"num_return_sequences": 2}, "num_return_sequences is 2"),
    ],
    ids=["stream", "sequences"],
)
@pytest.mark.parametrize("model", MODELS)
def test_what_takes_several_responses_is_refused_without_decoupling(
    single_server: Server, model: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        once(single_server, message(model, prompt_for(single_server, model, PROMPT), 4, **values))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_is_refused_without_decoupling(single_server: Server, model: str) -> None:
    prompt: Any = rows(PROMPT, PROMPT)
    lengths = {}
    if model == DIRECT:
        prompt, lengths = np.array([ids_of(single_server.engine, PROMPT)] * 2, np.int32), {"input_lengths": rows(5, 5)}
    with pytest.raises(grpc.RpcError) as caught:
        once(single_server, message(model, prompt, rows(4, 4), **lengths))
    wanted = "Batch size > 1 requires the tensorrt_llm backend to be using decoupled transaction policy"
    assert wanted in str(caught.value)


def test_without_decoupling_a_full_queue_is_unavailable_and_unary_calls_can_be_cancelled(single_server: Server) -> None:
    """They are all cancelled, since none would end before its time is over: that of this test."""
    page_when(single_server, lambda page: page.quiet)
    endless = message(DIRECT, ids_of(single_server.engine, PROMPT), ENDLESS)
    with GrpcConnection(single_server.grpc_address) as connection:
        running = connection.stub.ModelInfer.future(endless)
        page_when(single_server, lambda page: page.batcher["generation_requests"] == 1)
        waiting = connection.stub.ModelInfer.future(endless)
        page_when(single_server, lambda page: page.requests["waiting"] == 1)
        with pytest.raises(grpc.RpcError) as caught:
            connection.stub.ModelInfer(endless, timeout=TIMEOUT)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "Exceeds maximum queue size" in caught.value.details()
        with post(single_server.http_address, f"/v2/models/{ENSEMBLE}/infer", INFER) as response:
            assert (response.status, b"Exceeds maximum queue size" in response.read()) == (503, True)
        for call in (running, waiting):
            call.cancel()
        page_when(single_server, lambda page: page.quiet)
