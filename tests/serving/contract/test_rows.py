"""What the prompts of a request must share, and inputs and names that would change nothing: refused, never ignored."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.serving.model_replies import (
    DIRECT,
    DIRECT_NAMES,
    MODELS,
    TEXT_MODELS,
    ids_of,
    message,
    once,
    refusal,
    rows,
    stream_of,
)
from tests.serving.raw_requests import generate, request

PROMPT = "The quick brown fox"

DIFFERING: dict[str, Any] = {
    "stream": rows(False, True, dtype=np.bool_),
    "exclude_input_in_output": rows(False, True, dtype=np.bool_),
    "num_return_sequences": rows(1, 2),
    "beam_width": rows(1, 2),
    "return_log_probs": rows(False, True, dtype=np.bool_),
    "return_perf_metrics": rows(False, True, dtype=np.bool_),
}
"""What decides about a request's responses, as two prompts would have it differently."""


def batch(server: Server, model: str, **values: Any) -> Any:
    """A request with the same prompt twice."""
    if model != DIRECT:
        return message(model, rows(PROMPT, PROMPT), rows(4, 4), **values)
    ids = ids_of(server.engine, PROMPT)
    return message(model, np.array([ids, ids], np.int32), rows(4, 4), input_lengths=rows(len(ids), len(ids)), **values)


def refused(server: Server, sent: Any) -> str:
    """The sentence by which a request is refused: its only response."""
    (reply,) = stream_of(server, sent)
    assert reply.error is not None, reply.tensors
    return reply.error


@pytest.mark.parametrize("name", DIFFERING)
@pytest.mark.parametrize("model", MODELS)
def test_prompts_that_differ_in_how_to_answer_are_refused(paced_server: Server, model: str, name: str) -> None:
    error = refused(paced_server, batch(paced_server, model, **{name: DIFFERING[name]}))
    theirs = DIRECT_NAMES.get(name, name) if model == DIRECT else name
    assert f"{theirs} must be the same for all prompts of a request" in error
    assert "[invalid_request]" in error


def test_a_stop_is_for_the_whole_request(paced_server: Server) -> None:
    error = refused(paced_server, batch(paced_server, DIRECT, stop=rows(False, True, dtype=np.bool_)))
    assert "stop must be the same for all prompts" in error


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_prompt_table_is_refused_for_whichever_prompt_it_is(paced_server: Server, model: str) -> None:
    error = refused(paced_server, batch(paced_server, model, prompt_table_extra_id=rows(0, 9, dtype=np.uint64)))
    assert "prompt_table_extra_id is not supported" in error


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_weights_without_words_are_refused(paced_server: Server, model: str) -> None:
    error = refusal(paced_server, model, PROMPT, 4, embedding_bias_weights=np.array([[0.5]], np.float32))
    assert "embedding_bias_weights requires embedding_bias_words; send both [invalid_parameter]" in error


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"temprature": 0.5}, "there is no input 'temprature'"),
        ({"top_k": 5}, "there is no input 'top_k'"),
        (
            {"request_type": "context_only"},
            "request_type is 'context_only', and disaggregated serving is not supported",
        ),
    ],
)
def test_names_that_the_engines_model_does_not_know_are_refused(
    paced_server: Server, more: dict[str, Any], sentence: str
) -> None:
    status, answer = generate(paced_server.http_address, direct_body(paced_server, **more), DIRECT)
    assert status >= 400
    assert sentence in answer["error"]


def test_the_engines_model_takes_names_of_the_protocol_and_empty_values(paced_server: Server) -> None:
    body = direct_body(paced_server, id="x", top_k=0, request_type="context_and_generation")
    status, answer = generate(paced_server.http_address, body, DIRECT)
    assert (status, answer["id"]) == (200, "x")


def direct_body(server: Server, **more: Any) -> dict[str, Any]:
    ids = ids_of(server.engine, PROMPT)
    return {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 3, **more}


def test_a_parameter_of_a_grpc_request_is_refused_too(paced_server: Server) -> None:
    sent = message(DIRECT, ids_of(paced_server.engine, PROMPT), 4)
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


def test_a_token_id_outside_the_vocabulary_is_named(paced_server: Server) -> None:
    error = refusal(paced_server, DIRECT, ids_of(paced_server.engine, PROMPT), 4, end_id=rows(100_000))
    assert "end_id: token id 100000 is outside the vocabulary" in error


def test_a_length_is_named_as_its_model_calls_it(paced_server: Server) -> None:
    error = refusal(paced_server, DIRECT, ids_of(paced_server.engine, PROMPT), 0)
    assert error.startswith("request_output_len is 0; it must be 1 or more")


def test_several_images_are_refused_by_name(paced_server: Server) -> None:
    values = {"QUERY": PROMPT, "REQUEST_OUTPUT_LEN": rows(4)}
    images = np.array([[b"http://example.com/a.png", b"http://example.com/b.png"]], np.object_)
    assert "IMAGES is not supported" in refused(paced_server, request("preprocessing", {**values, "IMAGES": images}))
    once(paced_server, request("preprocessing", {**values, "IMAGES": np.array([[b""]], np.object_)}))


@pytest.mark.parametrize("token_id", [-1, 99_999_999])
def test_ids_that_are_no_tokens_have_no_text(paced_server: Server, token_id: int) -> None:
    sent = decoding(*ids_of(paced_server.engine, PROMPT), token_id)
    error = refused(paced_server, sent)
    assert f"TOKENS_BATCH: token id {token_id} is outside the vocabulary of" in error
    assert "[invalid_token_ids]" in error


def test_the_models_own_tokens_are_taken_also_where_the_tokenizer_knows_none(paced_server: Server) -> None:
    """Many models have more tokens than their tokenizer: their vocabulary is filled up to a round number."""
    manifest = json.loads((paced_server.engine / "engine.json").read_text())
    ids = ids_of(paced_server.engine, PROMPT)
    texts = [
        once(paced_server, decoding(*ids, *more)).tensors["OUTPUT"].tolist()
        for more in ((), (manifest["vocab_size"] - 1,))
    ]
    assert texts[1][0].startswith(texts[0][0])


def decoding(*token_ids: int) -> Any:
    """A request to postprocessing for the text of one sequence."""
    values = {"TOKENS_BATCH": np.array([[token_ids]], np.int32), "SEQUENCE_LENGTH": rows(len(token_ids))}
    return request("postprocessing", values)
