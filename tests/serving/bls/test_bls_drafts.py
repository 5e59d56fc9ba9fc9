"""Speculation between two models, scripted: the same answers as without, in fewer steps of the large one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.serving.bls.bls_requests import BLS, PROMPTS, answers, ask, told, words
from tests.serving.raw_requests import GrpcConnection, TimedResponse, generate, request


@pytest.fixture(scope="module")
def drafted_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """The tiny Llama drafts for itself, so that all its guesses are right."""
    parameters = {BLS: {"tensorrt_llm_draft_model_name": "tensorrt_llm"}}
    options = DeploymentOptions(parameters=parameters)
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


def drafts(count: int) -> dict[str, Any]:
    return {"num_draft_tokens": np.array([[count]], np.int32), "stream": False}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"end_id": -1},
        {"exclude_input_in_output": True},
        {"stop_words": words("e", " a"), "min_tokens": 6},
        {"repetition_penalty": 1.3, "seed": 3},
    ],
)
def test_the_answer_is_the_same_as_without(drafted_server: Server, values: dict[str, Any]) -> None:
    several = ({"stream": False}, drafts(1), drafts(4))
    asked = [((prompt, 33), {**values, **one}) for one in several for prompt in PROMPTS]
    with GrpcConnection(drafted_server.grpc_address) as connection:
        found = [told(responses) for responses in answers(connection, *asked)]
    assert found == found[: len(PROMPTS)] * 3


def test_guesses_are_counted_and_log_probabilities_come_for_each_token(drafted_server: Server) -> None:
    values: dict[str, Any] = {"return_perf_metrics": True, "return_log_probs": True, "end_id": -1}
    with GrpcConnection(drafted_server.grpc_address) as connection:
        (plain,) = ask(connection, PROMPTS[0], 33, stream=False, **values).finish()
        (drafted,) = ask(connection, PROMPTS[0], 33, **{**values, **drafts(4)}).finish()
    assert drafted.count("total_draft_tokens") >= 24
    assert 0.9 <= number(drafted, "acceptance_rate") <= 1
    mine, theirs = (np.frombuffer(one.outputs["output_log_probs"], np.float32) for one in (drafted, plain))
    assert len(mine) == 33
    assert np.allclose(mine, theirs, atol=1e-3)
    arrival, first, last = (
        int(np.frombuffer(drafted.outputs[name], np.int64)[0])
        for name in ("arrival_time_ns", "first_token_time_ns", "last_token_time_ns")
    )
    assert arrival < first < last


def number(response: TimedResponse, name: str) -> float:
    return float(np.frombuffer(response.outputs[name], np.float32)[0])


def test_a_deadline_holds_for_all_rounds_together(drafted_server: Server) -> None:
    with GrpcConnection(drafted_server.grpc_address) as connection:
        (last,) = ask(connection, PROMPTS[0], 1500, deadline_ms=300, end_id=-1, **drafts(1)).finish()
    assert (last.error, last.finish_reason) == (None, "deadline")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"stream": True}, "num_draft_tokens is 4, which can't be combined with stream; leave one of them out"),
        ({"beam_width": 2}, "can't be combined with beam_width above 1"),
        ({"num_return_sequences": 2}, "can't be combined with num_return_sequences above 1"),
        ({"presence_penalty": 0.5}, "can't be combined with presence_penalty"),
        ({"guided_decoding_guide_type": "json"}, "can't be combined with guided_decoding_guide_type"),
        ({"num_draft_tokens": np.array([[-1]], np.int32)}, "num_draft_tokens is -1; it must be 0 or more"),
        ({"temperature": -1.0}, "temperature is -1; it must be 0 or more"),
    ],
)
def test_what_does_not_go_with_drafts_is_refused(drafted_server: Server, values: dict[str, Any], sentence: str) -> None:
    asked = {"text_input": PROMPTS[0], "max_tokens": 8, **drafts(4), **values}
    with GrpcConnection(drafted_server.grpc_address) as connection:
        error = connection.send(request(BLS, asked)).error()
    assert sentence in error
    assert error.endswith("[invalid_parameter]")


def test_over_http_it_is_one_response(drafted_server: Server) -> None:
    values = {"text_input": PROMPTS[0], "max_tokens": 12, "num_draft_tokens": 3}
    status, answer = generate(drafted_server.http_address, values, BLS)
    assert (status, answer["num_output_tokens"] > 0) == (200, True)
