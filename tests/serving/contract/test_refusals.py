"""What can't be done, differs within a request, or has no such name, is refused, never ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import ENDLESS, paced
from tests.serving.metrics_page import page_when
from tests.serving.model_replies import (
    BLS,
    DIRECT,
    DIRECT_NAMES,
    ENSEMBLE,
    MODELS,
    ask,
    ids_of,
    message,
    once,
    prompt_for,
    refusal,
    rows,
    stream_of,
    text_of,
    whole,
    words,
)
from tests.serving.raw_requests import TIMEOUT, GrpcConnection, generate, post, request

PROMPT = "The quick brown fox"

USED: dict[str, dict[str, Any]] = {
    DIRECT: {
        "return_context_logits": True,
        "draft_input_ids": rows(3),
        "retention_decode_priority": rows(90),
    },
    ENSEMBLE: {
        "decoder_text_input": "again",
        "return_generation_logits": True,
        "prompt_embedding_table": np.ones((1, 2, 8), np.float16),
        "prompt_table_extra_id": rows(3, dtype=np.uint64),
        "lora_weights": np.ones((1, 2, 8), np.float16),
    },
    BLS: {
        "image_input": np.zeros((1, 1, 3, 2, 2), np.float16),
        "image_bytes_input": np.zeros((1, 1, 2, 2, 3), np.uint8),
        "image_url_input": "http://example.com/a.png",
        "video_bytes_input": np.zeros((1, 1, 2, 2, 3), np.uint8),
    },
}
"""A value for inputs that models can't honour; tests/runtime/triton/test_unsupported_inputs.py has all of them."""

NEUTRAL: dict[str, dict[str, Any]] = {
    DIRECT: {
        "bad_words_list": np.array([[[0], [-1]]], np.int32),
        "embedding_bias": np.zeros((1, 4), np.float32),
        "decoder_input_ids": rows(1),
        "runtime_top_p_decay": rows(1, dtype=np.float32),
        "runtime_top_p_min": rows(1e-6, dtype=np.float32),
        "draft_input_ids": np.zeros((1, 0), np.int32),
        "retention_decode_priority": rows(35),
        "cross_attention_mask": np.zeros((1, 2, 2), np.bool_),
        "lora_weights": np.zeros((1, 2, 8), np.float16),
        "context_phase_params": np.zeros((1, 4), np.uint8),
    },
    ENSEMBLE: {
        "decoder_text_input": "",
        "bad_words": words(""),
        "return_context_logits": False,
        "prompt_table_extra_id": rows(0, dtype=np.uint64),
        "prompt_embedding_table": np.zeros((1, 2, 8), np.float16),
        "embedding_bias_words": words("", ""),
        "embedding_bias_weights": np.zeros((1, 1), np.float32),
        "lora_task_id": 0,
        "lora_config": np.zeros((1, 2, 3), np.int32),
        "guided_decoding_guide_type": "",
        "guided_decoding_guide": "",
    },
}
"""What asks for nothing: nothing itself, zeros, or upstream's own default."""

INFER = {
    "inputs": [
        {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [PROMPT]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [3]},
    ]
}
"""A request as the KServe protocol has it."""

DIFFERING: dict[str, Any] = {
    **{
        name: rows(False, True, dtype=np.bool_)
        for name in ("stream", "exclude_input_in_output", "return_log_probs", "return_perf_metrics")
    },
    "num_return_sequences": rows(1, 2),
    "beam_width": rows(1, 2),
}
"""What decides about a request's responses, as two prompts would have it differently."""


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


def refused(server: Server, sent: Any) -> str:
    """The sentence by which a request is refused: its only response."""
    (reply,) = stream_of(server, sent)
    assert reply.error is not None, reply.tensors
    return reply.error


def batch(server: Server, model: str, **values: Any) -> Any:
    """A request with the same prompt twice."""
    if model != DIRECT:
        return message(model, rows(PROMPT, PROMPT), rows(4, 4), **values)
    ids = ids_of(server.engine, PROMPT)
    return message(model, np.array([ids, ids], np.int32), rows(4, 4), input_lengths=rows(len(ids), len(ids)), **values)


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, values in USED.items() for name in values])
def test_it_is_refused_by_the_name_that_its_client_knows(paced_server: Server, model: str, name: str) -> None:
    error = refusal(paced_server, model, prompt_for(paced_server, model, PROMPT), 4, **{name: USED[model][name]})
    assert re.search(rf"\b{name} is not supported", error), error
    assert "[unsupported_input]" in error


@pytest.mark.parametrize("model", MODELS)
def test_neutral_values_ask_for_nothing(paced_server: Server, model: str) -> None:
    prompt = prompt_for(paced_server, model, PROMPT)
    found = ask(paced_server, model, prompt, 5, **NEUTRAL[model], exclude_input_in_output=True)
    assert whole(found, model) == prompt


def test_whatever_prompt_of_a_request_it_is_refused(paced_server: Server) -> None:
    error = refused(paced_server, batch(paced_server, ENSEMBLE, prompt_table_extra_id=rows(0, 9, dtype=np.uint64)))
    assert "prompt_table_extra_id is not supported" in error
    error = refused(paced_server, batch(paced_server, DIRECT, stop=rows(False, True, dtype=np.bool_)))
    assert "stop must be the same for all prompts" in error


@pytest.mark.parametrize("name", DIFFERING)
@pytest.mark.parametrize("model", MODELS)
def test_prompts_that_differ_in_how_to_answer_are_refused(paced_server: Server, model: str, name: str) -> None:
    error = refused(paced_server, batch(paced_server, model, **{name: DIFFERING[name]}))
    theirs = DIRECT_NAMES.get(name, name) if model == DIRECT else name
    assert f"{theirs} must be the same for all prompts of a request" in error
    assert "[invalid_request]" in error


def test_names_that_the_engines_model_does_not_know_are_refused(paced_server: Server) -> None:
    ids = ids_of(paced_server.engine, PROMPT)
    body = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 3}
    status, answer = generate(paced_server.http_address, {**body, "temprature": 0.5}, DIRECT)
    assert status >= 400
    assert "there is no input 'temprature'" in answer["error"]
    more = {"id": "x", "top_k": 0, "request_type": "context_and_generation"}
    status, answer = generate(paced_server.http_address, {**body, **more}, DIRECT)
    assert (status, answer["id"]) == (200, "x")
    sent = message(DIRECT, ids, 4)
    sent.parameters["request_type"].string_param = "generation_only"
    assert "request_type is 'generation_only'" in refused(paced_server, sent)


@pytest.mark.parametrize("streaming", [True, False])
def test_upstreams_client_says_once_more_whether_it_streams(paced_server: Server, streaming: bool) -> None:
    sent = message(DIRECT, ids_of(paced_server.engine, PROMPT), 4, stream=streaming)
    stop = message(DIRECT, [0], 0, "nobody", stop=True)
    for one in (sent, stop):
        one.parameters["Streaming"].bool_param = streaming
    assert stream_of(paced_server, sent)[-1].finish_reason == "length"
    assert [reply.error for reply in stream_of(paced_server, stop)] == [None]
    sent.parameters["Streaming"].bool_param = True
    assert streaming or "there is no input 'Streaming'" in refused(paced_server, sent)


def test_several_images_are_refused_by_name(paced_server: Server) -> None:
    values = {"QUERY": PROMPT, "REQUEST_OUTPUT_LEN": rows(4)}
    images = np.array([[b"http://example.com/a.png", b"http://example.com/b.png"]], np.object_)
    assert "IMAGES is not supported" in refused(paced_server, request("preprocessing", {**values, "IMAGES": images}))
    once(paced_server, request("preprocessing", {**values, "IMAGES": np.array([[b""]], np.object_)}))


def decoding(*token_ids: int) -> Any:
    """A request to postprocessing for the text of one sequence."""
    values = {"TOKENS_BATCH": np.array([[token_ids]], np.int32), "SEQUENCE_LENGTH": rows(len(token_ids))}
    return request("postprocessing", values)


@pytest.mark.parametrize("token_id", [-1, 99_999_999])
def test_ids_that_are_no_tokens_have_no_text(paced_server: Server, token_id: int) -> None:
    error = refused(paced_server, decoding(*ids_of(paced_server.engine, PROMPT), token_id))
    assert f"TOKENS_BATCH: token id {token_id} is outside the vocabulary of" in error
    assert "[invalid_token_ids]" in error


def test_the_models_own_tokens_are_taken_also_where_the_tokenizer_knows_none(paced_server: Server) -> None:
    """Many models have more tokens than their tokenizer: their vocabulary is filled up to a round number."""
    last = json.loads((paced_server.engine / "engine.json").read_text())["vocab_size"] - 1
    ids = ids_of(paced_server.engine, PROMPT)
    alone, filled = (once(paced_server, decoding(*ids, *more)).tensors["OUTPUT"].tolist()[0] for more in ((), (last,)))
    assert filled.startswith(alone)


@pytest.mark.parametrize("model", MODELS)
def test_without_decoupling_an_answer_comes_in_one_response(single_server: Server, model: str) -> None:
    """With the prompt or without, as the request says before the deployment does."""
    prompt, own = prompt_for(single_server, model, PROMPT), ids_of(single_server.engine, PROMPT)
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [*own, *own[:2]]),
        ({"exclude_input_in_output": False}, [*own, *own, *own[:2]]),
    ]
    for values, told in cases:
        reply = once(single_server, message(model, prompt, 7, return_token_ids=True, **values))
        assert whole([reply], model) == (told if model == DIRECT else text_of(single_server.engine, tuple(told)))
        assert reply.tensors["token_ids"].tolist() == [[[*own, *own[:2]]]]
        assert (reply.finish_reason, reply.number("num_responses")) == ("length", 1)


@pytest.mark.parametrize("model", MODELS)
def test_what_takes_several_responses_is_refused_without_decoupling(single_server: Server, model: str) -> None:
    prompt = prompt_for(single_server, model, PROMPT)
    batches = "Batch size > 1 requires the tensorrt_llm backend to be using decoupled transaction policy"
    for sent, sentence in (
        (
            message(model, prompt, 4, stream=True),
            "Streaming is only supported if model is deployed using decoupled mode.",
        ),
        (message(model, prompt, 4, num_return_sequences=2), "num_return_sequences is 2"),
        (batch(single_server, model), batches),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            once(single_server, sent)
        assert sentence in str(caught.value)


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
