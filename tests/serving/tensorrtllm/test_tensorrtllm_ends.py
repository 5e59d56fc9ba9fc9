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
from tests.serving.raw_requests import GrpcConnection, request
from tests.serving.tensorrtllm.echo import ENDLESS, QUEUE, TEXTS, TOKENIZER, ids_of, text_of
from tests.text.example_tokenizers import ADDED, SPECIAL

H100 = GpuMachine(gpu="NVIDIA H100 80GB HBM3", compute_capability="9.0", driver="590.48.01")


def test_an_answer_ends_at_each_end_token_of_the_model(cpp_server: Server) -> None:
    """The backend knows one; the other becomes a stop word, whose text upstream's ensemble does not take away."""
    prompt = f"the tea {ADDED} and two"
    with GrpcConnection(cpp_server.grpc_address) as connection:
        calls = [
            connection.text(prompt, 50, f"ends {stream}", stream=stream, exclude_input_in_output=True)
            for stream in (True, False)
        ]
        said = {text_of(call.finish()) for call in calls}
        ignored = connection.text(prompt, 50, end_id=-1).finish()
    assert said == {TOKENIZER.decode(ids_of(f"the tea {ADDED}"))}
    assert text_of(ignored).count(ADDED) > 1


def test_the_end_token_itself_says_nothing(cpp_server: Server) -> None:
    with GrpcConnection(cpp_server.grpc_address) as connection:
        answer = connection.text(f"the tea{SPECIAL} and two", 50, "end").finish()
    assert text_of(answer) == "the tea"


def stop(request_id: str) -> Any:
    values = {"input_ids": np.zeros((1, 1), np.int32), "input_lengths": 1, "request_output_len": 1, "stop": True}
    return request("tensorrt_llm", values, request_id)


def test_a_full_queue_refuses_and_a_stop_makes_room(cpp_server: Server) -> None:
    with GrpcConnection(cpp_server.grpc_address) as connection:
        stopped = [connection.text(TEXTS[0], ENDLESS, f"endless {n}") for n in range(QUEUE)]
        for call in stopped:
            call.wait_for(1)
        refused = connection.text(TEXTS[0], 5).error()
        assert "Maximum queue size of 6 has been reached" in refused
        for number, call in enumerate(stopped):
            assert connection.send(stop(f"endless {number}")).finish()[0].error is None
            call.finish()
        patient = time.monotonic() + 60
        calls = [connection.text(TEXTS[0], 5) for _ in range(QUEUE)]
        while any(call.finish()[0].error for call in calls):
            assert time.monotonic() < patient
            calls = [connection.text(TEXTS[0], 5) for _ in range(QUEUE)]


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
