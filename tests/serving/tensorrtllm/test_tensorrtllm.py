"""The repository for TensorRT-LLM's C++ backend on a real Triton; behind it, a stand-in for the backend.

What is seen here of the backend is the stand-in's; what is tested is the way around it: the emitted configurations,
the ensemble, pre- and postprocessing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor

from build_engines.manifest import GpuMachine
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.runtime.streams.sequence_ids import sequence_id_factory
from tests.fixtures.errors import raises
from tests.fixtures.tensorrtllm import MADE_WITH, GpuEngine, stand_in_backend
from tests.serving.raw_requests import GrpcConnection, request
from tests.serving.tensorrtllm.echo import ENDLESS, QUEUE, TEXTS, TOKENIZER, WITHOUT, ids_of, text_of, thrice
from tests.text.example_tokenizers import ADDED, SPECIAL


def test_a_stream_says_what_its_tokens_say_together(cpp_server: Server) -> None:
    with GrpcConnection(cpp_server.grpc_address) as connection:
        calls = [connection.text(text, thrice(text)[0], f"stream {text}") for text in TEXTS]
        assert [text_of(call.finish()) for call in calls] == [thrice(text)[1] for text in TEXTS]


def test_streams_without_an_id_are_told_apart_by_their_sequence_ids(cpp_server: Server) -> None:
    """Preprocessing gives each request one where Triton lets it, from 25.02 on; here the client does."""
    requests = []
    for number, text in enumerate(TEXTS, 1):
        values = {"text_input": text, "max_tokens": thrice(text)[0], "stream": True}
        requests.append(request("ensemble", values))
        requests[-1].parameters["sequence_id"].int64_param = number
    with GrpcConnection(cpp_server.grpc_address) as connection:
        said = [text_of(call.finish()) for call in [connection.send(one) for one in requests]]
    assert said == [thrice(text)[1] for text in TEXTS]


def test_a_whole_answer_shows_where_it_was_cut_and_takes_nothing_from_the_one_before(cpp_server: Server) -> None:
    """By the name that preprocessing gives it from Triton 25.02 on; here the client does."""
    emoji = TEXTS[2][:9]
    cut = len(ids_of(emoji)) - 2
    expected = emoji[:-1] + "\ufffd"
    name = sequence_id_factory(Named)(False)["parameters"]["sequence_id"]
    asked = request("ensemble", {"text_input": emoji, "max_tokens": cut, "stream": False, **WITHOUT}, "whole")
    asked.parameters["sequence_id"].int64_param = name
    with GrpcConnection(cpp_server.grpc_address) as connection:
        said = [connection.send(asked).finish()[-1].text for _ in range(2)]
    assert said == [expected] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_prompts_and_sequences_of_one_request_are_told_apart(cpp_server: Server, stream: bool) -> None:
    counts = [thrice(text)[0] for text in TEXTS[:2]]
    values: dict[str, Any] = {
        "text_input": np.array([[text.encode()] for text in TEXTS[:2]], np.object_),
        "max_tokens": np.array([[count] for count in counts], np.int32),
        "stream": np.array([[stream]] * 2),
        "exclude_input_in_output": np.array([[True]] * 2),
        "num_return_sequences": np.array([[2]] * 2, np.int32),
    }
    with GrpcConnection(cpp_server.grpc_address) as connection:
        responses = connection.send(request("ensemble", values, f"several {stream}")).finish()
    said: dict[tuple[int, int], str] = {}
    for response in responses:
        assert response.error is None
        key = response.count("batch_index"), response.count("sequence_index")
        said[key] = said.get(key, "") + response.text
    assert said == {(row, sequence): thrice(TEXTS[row])[1] for row in range(2) for sequence in range(2)}


@pytest.mark.parametrize("stream", [True, False])
def test_all_beams_are_told(cpp_server: Server, stream: bool) -> None:
    count, expected = thrice(TEXTS[1])
    with GrpcConnection(cpp_server.grpc_address) as connection:
        call = connection.text(TEXTS[1], count, f"beams {stream}", stream=stream, beam_width=2, **WITHOUT)
        said: list[list[bytes]] = [
            deserialize_bytes_tensor(response.outputs["text_output"]).tolist() for response in call.finish()
        ]
    assert [b"".join(beam).decode() for beam in zip(*said, strict=True)] == [expected] * 2


class Named:
    """A response as python models have it from Triton 25.02 on."""

    def __init__(self, output_tensors: list[Any], parameters: dict[str, Any]) -> None:
        pass


def test_tokens_times_and_log_probabilities_go_through(cpp_server: Server) -> None:
    wanted = {f"return_{name}": True for name in ("log_probs", "perf_metrics", "num_input_tokens", "num_output_tokens")}
    with GrpcConnection(cpp_server.grpc_address) as connection:
        responses = connection.text(TEXTS[0], 7, "figures", **wanted).finish()
    last = responses[-1]
    assert last.count("num_input_tokens") == len(ids_of(TEXTS[0]))
    told = [response.count("num_output_tokens") for response in responses if "num_output_tokens" in response.outputs]
    assert told == [1] * 7, "the backend counts what each response brings"
    each = b"".join(response.outputs["output_log_probs"] for response in responses)
    assert np.frombuffer(each, np.float32).tolist() == [-0.5] * 7
    assert np.frombuffer(last.outputs["arrival_time_ns"], np.int64)[0] > 0


def test_the_backend_counts_a_prompt_that_it_echoes_and_all_beams(cpp_server: Server) -> None:
    """What the contract says of `num_output_tokens` on an ensemble's whole answer."""
    asked: dict[str, Any] = {"stream": False, "return_num_output_tokens": True}
    ids = ids_of(TEXTS[0])
    told = [*ids, *ids[:7]]
    with GrpcConnection(cpp_server.grpc_address) as connection:
        for values, count, text in (
            ({}, len(told), TOKENIZER.decode(told)),
            (WITHOUT, 7, TOKENIZER.decode(ids[:7])),
            ({**WITHOUT, "beam_width": 2}, 14, TOKENIZER.decode(ids[:7])),
        ):
            (whole,) = connection.text(TEXTS[0], 7, **asked, **values).finish()
            assert (whole.count("num_output_tokens"), whole.text) == (count, text), values


def test_without_decoupling_each_request_gets_one_answer(cpp_engine: Path) -> None:
    text = TEXTS[1]
    ids = ids_of(text)
    options = DeploymentOptions(decoupled=False, settings={"postprocessing_instance_count": 2})
    with stand_in_backend(), Server(cpp_engine, options) as server, GrpcConnection(server.grpc_address) as connection:
        (whole,) = connection.text(text, len(ids), stream=False, exclude_input_in_output=True).finish()
        assert whole.text == TOKENIZER.decode(ids)
        sentence = connection.text(text, 5).error()
        assert sentence.endswith("Streaming is only supported if model is deployed using decoupled mode.")
        several = {
            "text_input": np.array([[b"a"], [b"b"]], np.object_),
            "max_tokens": np.array([[2], [2]], np.int32),
        }
        refused = connection.send(request("ensemble", several)).error()
        assert "Batch size > 1 requires the tensorrt_llm backend to be using decoupled" in refused


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
