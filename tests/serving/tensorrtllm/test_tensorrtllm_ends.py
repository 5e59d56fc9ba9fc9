"""What ends an answer behind TensorRT-LLM's C++ backend, or keeps one from beginning; a stand-in plays the backend."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from build_engines.manifest import GpuMachine
from inflight.deploy.errors import DeployError
from inflight.deploy.server.server import Server
from tests.fixtures.errors import raises
from tests.fixtures.tensorrtllm import MADE_WITH, GpuEngine, stand_in_backend
from tests.runtime.text.example_tokenizers import ADDED, SPECIAL
from tests.serving.bls.bls_requests import BLS, ask, words
from tests.serving.raw_requests import GrpcConnection, request
from tests.serving.tensorrtllm.echo import ENDLESS, QUEUE, TEXTS, TOKENIZER, ids_of, text_of

H100 = GpuMachine(gpu="NVIDIA H100 80GB HBM3", compute_capability="9.0", driver="590.48.01")
SHARED = "everybody's"


def test_an_answer_ends_at_each_end_token_of_the_model(cpp_server: Server) -> None:
    """The backend knows one; the other becomes a stop word, whose text upstream's ensemble does not take away."""
    prompt = f"the tea {ADDED} and two"
    with GrpcConnection(cpp_server.grpc_address) as connection:
        calls = [
            ask(connection, prompt, 50, model, f"ends {model} {stream}", stream=stream, exclude_input_in_output=True)
            for model in ("ensemble", BLS)
            for stream in (True, False)
        ]
        said = {text_of(call.finish()) for call in calls}
        ignored = ask(connection, prompt, 50, end_id=np.array([[-1]], np.int32)).finish()
    assert said == {TOKENIZER.decode(ids_of(f"the tea {ADDED}"))}
    assert text_of(ignored).count(ADDED) > 1


def test_the_end_token_itself_says_nothing(cpp_server: Server) -> None:
    with GrpcConnection(cpp_server.grpc_address) as connection:
        answers = [
            ask(connection, f"the tea{SPECIAL} and two", 50, model, f"end {model}").finish()
            for model in ("ensemble", BLS)
        ]
    assert [text_of(answer) for answer in answers] == ["the tea"] * 2
    assert answers[1][-1].finish_reason == "stop"


@pytest.mark.parametrize("stream", [True, False])
def test_stop_words_end_an_answer_and_the_scripted_model_takes_them_away(cpp_server: Server, stream: bool) -> None:
    values = {"stream": stream, "exclude_input_in_output": True, "stop_words": words(" two")}
    with GrpcConnection(cpp_server.grpc_address) as connection:
        theirs, ours = (
            ask(connection, TEXTS[0], 50, model, f"stop {model} {stream}", **values).finish()
            for model in ("ensemble", BLS)
        )
    assert text_of(ours) == "the tea  and"
    assert ours[-1].finish_reason == "stop_word"
    # The ids of a word are found where the tokens are cut as the word's own are; upstream's manner, text and all.
    assert text_of(theirs).startswith("the tea  and")


def stop(request_id: str) -> Any:
    values = {"input_ids": np.zeros((1, 1), np.int32), "input_lengths": 1, "request_output_len": 1, "stop": True}
    return request("tensorrt_llm", values, request_id)


def test_a_full_queue_refuses_and_whoever_is_gone_makes_room(cpp_server: Server) -> None:
    """Clients that leave are noticed by the scripted model; a stop request ends an ensemble's stream by its id."""
    with GrpcConnection(cpp_server.grpc_address) as connection:
        left = [ask(connection, TEXTS[0], ENDLESS) for _ in range(QUEUE // 2)]
        stopped = [ask(connection, TEXTS[0], ENDLESS, "ensemble", f"endless {n}") for n in range(QUEUE // 2)]
        for call in (*left, *stopped):
            call.wait_for(1)
        refused = ask(connection, TEXTS[0], 5).error()
        assert "Maximum queue size of 6 has been reached" in refused
        assert refused.endswith("[overloaded]")
        for call in left:
            call.cancel()
        for number, call in enumerate(stopped):
            assert connection.send(stop(f"endless {number}")).finish()[0].error is None
            call.finish()
        patient = time.monotonic() + 60
        calls = [ask(connection, TEXTS[0], 5) for _ in range(QUEUE)]
        while any(call.finish()[0].error for call in calls):
            assert time.monotonic() < patient
            calls = [ask(connection, TEXTS[0], 5) for _ in range(QUEUE)]


@pytest.mark.parametrize("model", ["ensemble", BLS])
def test_the_scripted_model_ends_its_own_requests_alone_whoever_has_their_id(cpp_server: Server, model: str) -> None:
    """A stop word, and a client that leaves, beside a request of the same id that came later and wants all."""
    with GrpcConnection(cpp_server.grpc_address) as connection:
        leaving = ask(connection, TEXTS[0], ENDLESS, request_id=SHARED)
        stopping = ask(connection, TEXTS[0], ENDLESS, request_id=SHARED, stop_words=words(" two"))
        other = ask(connection, TEXTS[0], 300, model, SHARED)
        other.wait_for(1)
        leaving.wait_for(1)
        leaving.cancel()
        assert stopping.finish()[-1].finish_reason == "stop_word"
        responses = other.finish()
    assert not any(response.error for response in responses)
    ids = ids_of(TEXTS[0])
    assert text_of(responses) == TOKENIZER.decode((ids * 300)[:300])


def test_the_scripted_model_stops_what_has_an_id(cpp_server: Server) -> None:
    with GrpcConnection(cpp_server.grpc_address) as connection:
        calls = [ask(connection, TEXTS[0], ENDLESS, request_id="mine") for _ in range(2)]
        other = ask(connection, TEXTS[0], 300, request_id="other")
        for call in (*calls, other):
            call.wait_for(2)
        ended = connection.send(request(BLS, {"text_input": "", "max_tokens": 1, "stop": True}, "mine")).finish()
        assert [response.error for response in ended] == [None]
        for call in calls:
            last = call.finish()[-1]
            assert last.error is None
            assert 0 < last.count("num_output_tokens") < ENDLESS
        assert other.finish()[-1].count("num_output_tokens") == 300
        nobody = request(BLS, {"text_input": "", "max_tokens": 1, "stop": True})
        assert connection.send(nobody).error().endswith("send the id of the request to stop [invalid_request]")


def test_stopping_is_upstreams(cpp_server: Server) -> None:
    with GrpcConnection(cpp_server.grpc_address) as connection:
        assert connection.send(stop("")).error() == "Trying to stop a request but request ID is not provided"
        assert connection.send(stop("nobody's")).finish()[0].error is None


@pytest.mark.parametrize(
    ("made_for", "sentence"),
    [
        (
            {"tensorrt_llm": "1.1.0", "versions": MADE_WITH},
            "Serialization assertion stdVersionRead ==",
        ),
        pytest.param({"sm": "8.0", "machine": H100}, "expecting compute 9.0 got compute 8.0", marks=pytest.mark.slow),
    ],
)
def test_an_engine_that_is_not_what_its_manifest_says_does_not_load(
    gpu_engine: GpuEngine, made_for: dict[str, Any], sentence: str
) -> None:
    with stand_in_backend(), raises(DeployError, "server_start_failed", naming=sentence):
        Server(gpu_engine("llama", **made_for)).start()
