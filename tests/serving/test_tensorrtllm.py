"""The repository for TensorRT-LLM's C++ backend on a real Triton; behind it, a stand-in for the backend.

What is seen here of the backend is the stand-in's; what is tested is the way around it: the emitted configurations,
the ensemble, pre- and postprocessing, and the scripted model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inflight_client import Client
from tritonclient.utils import deserialize_bytes_tensor

from build_engines.manifest import GpuLimits, GpuMachine
from inflight.deploy.errors import DeployError
from inflight.deploy.options import DeploymentOptions
from inflight.deploy.server import Server
from inflight.runtime.stream_names import stream_namer
from tests.fixtures.tensorrtllm import MADE_WITH, GpuEngine, stand_in_backend
from tests.runtime.test_detokenizer import ADDED, SPECIAL, llama_2
from tests.serving.bls import BLS, ask, words
from tests.serving.streams import Grpc, Response, generate, generate_stream, request

TOKENIZER = llama_2()
"""The kind that loses spaces and breaks characters where tokens are decoded one by one."""
TEXTS = ["the tea  and two tins, the tea.", "日本語のお茶 中文字", "a 👩‍👩‍👧‍👦 family, thumbs 👍🏽 and café crème"]
H100 = GpuMachine(gpu="NVIDIA H100 80GB HBM3", compute_capability="9.0", driver="590.48.01")
WITHOUT: dict[str, Any] = {"exclude_input_in_output": True}
QUEUE = 6
ENDLESS = 1500


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def thrice(text: str) -> tuple[int, str]:
    """How many tokens the prompt said three times is, and its text."""
    ids = ids_of(text) * 3
    return len(ids), TOKENIZER.decode(ids)


def text_of(responses: list[Response]) -> str:
    return "".join(response.text for response in responses)


@pytest.fixture(scope="module")
def engine(gpu_engine: GpuEngine) -> Path:
    """Its model has two end tokens, of which the backend is told one."""
    ends = [TOKENIZER.token_to_id(SPECIAL), TOKENIZER.token_to_id(ADDED)]
    limits = GpuLimits(max_batch_size=64, max_num_tokens=8192, max_input_len=1024, max_beam_width=2)
    return gpu_engine("llama", tokenizer=TOKENIZER, end_ids=ends, limits=limits)


@pytest.fixture(scope="module")
def cpp_server(engine: Path) -> Iterator[Server]:
    """Shared, so no test may harm it, nor fill its queue for longer than it must."""
    options = DeploymentOptions(max_queue_size=QUEUE, settings={"max_beam_width": "2"})
    with stand_in_backend(), Server(engine, options) as running:
        yield running


def test_a_stream_says_what_its_tokens_say_together(cpp_server: Server) -> None:
    with Grpc(cpp_server.grpc_address) as connection:
        calls = {
            (model, text): ask(connection, text, thrice(text)[0], model, request_id=f"{model} {text}")
            for text in TEXTS
            for model in ("ensemble", BLS)
        }
        said = {key: text_of(call.finish()) for key, call in calls.items()}
    assert said == {(model, text): thrice(text)[1] for model, text in calls}


def test_streams_without_an_id_are_told_apart_by_their_sequence_ids(cpp_server: Server) -> None:
    """Preprocessing gives each request one where Triton lets it, from 25.02 on; here the client does."""
    requests = []
    for number, text in enumerate(TEXTS, 1):
        values = {"text_input": text, "max_tokens": thrice(text)[0], "stream": True}
        requests.append(request("ensemble", values))
        requests[-1].parameters["sequence_id"].int64_param = number
    with Grpc(cpp_server.grpc_address) as connection:
        said = [text_of(call.finish()) for call in [connection.send(one) for one in requests]]
    assert said == [thrice(text)[1] for text in TEXTS]


def test_a_whole_answer_shows_where_it_was_cut_and_takes_nothing_from_the_one_before(cpp_server: Server) -> None:
    """By the name that preprocessing gives it from Triton 25.02 on; here the client does."""
    emoji = TEXTS[2][:9]
    cut = len(ids_of(emoji)) - 2
    expected = TOKENIZER.decode(ids_of(emoji)[:cut])
    assert expected.endswith("\ufffd")
    name = stream_namer(Named)(False)["parameters"]["sequence_id"]
    said = []
    with Grpc(cpp_server.grpc_address) as connection:
        for model in ("ensemble", "ensemble", BLS):
            values = {"text_input": emoji, "max_tokens": cut, "stream": False, **WITHOUT}
            asked = request(model, values, "whole")
            if model == "ensemble":
                asked.parameters["sequence_id"].int64_param = name
            (answer,) = connection.send(asked).finish()
            said.append(answer.text)
    assert said == [expected] * 3


@pytest.mark.parametrize("model", ["ensemble", BLS])
def test_a_whole_answer_comes_with_its_prompt_or_without(cpp_server: Server, model: str) -> None:
    text = TEXTS[0]
    ids = ids_of(text)
    values = {"text_input": text, "max_tokens": len(ids)}
    answers = [
        generate(cpp_server.http_address, {**values, "exclude_input_in_output": excluded}, model)[1]["text_output"]
        for excluded in (True, False)
    ]
    assert answers == [TOKENIZER.decode(ids), TOKENIZER.decode(ids * 2)]


def test_over_http_too(cpp_server: Server) -> None:
    count, expected = thrice(TEXTS[1])
    values = {"text_input": TEXTS[1], "max_tokens": count, "id": "over http"}
    events = [event["text_output"] for _, event in generate_stream(cpp_server.http_address, values)]
    assert ("".join(events), len(events)) == (expected, count)


def test_our_client_knows_when_an_answer_has_ended(cpp_server: Server) -> None:
    count, expected = thrice(TEXTS[0])
    for model, why, tokens in (("ensemble", "", 0), (BLS, "length", count)):
        with Client(cpp_server.grpc_address, model=model) as client:
            found = client.generate(TEXTS[0], max_tokens=count)
            assert "".join(delta.text for delta in client.stream(TEXTS[0], max_tokens=count))
        assert (found.text, found.finish_reason, found.output_tokens) == (expected, why, tokens)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["ensemble", BLS])
def test_prompts_and_sequences_of_one_request_are_told_apart(cpp_server: Server, model: str, stream: bool) -> None:
    counts = [thrice(text)[0] for text in TEXTS[:2]]
    values: dict[str, Any] = {
        "text_input": np.array([[text.encode()] for text in TEXTS[:2]], np.object_),
        "max_tokens": np.array([[count] for count in counts], np.int32),
        "stream": np.array([[stream]] * 2),
        "exclude_input_in_output": np.array([[True]] * 2),
        "num_return_sequences": np.array([[2]] * 2, np.int32),
    }
    with Grpc(cpp_server.grpc_address) as connection:
        responses = connection.send(request(model, values, f"several {model} {stream}")).finish()
    said: dict[tuple[int, int], str] = {}
    for response in responses:
        assert response.error is None
        key = response.count("batch_index"), response.count("sequence_index")
        said[key] = said.get(key, "") + response.text
    assert said == {(row, sequence): thrice(TEXTS[row])[1] for row in range(2) for sequence in range(2)}


@pytest.mark.parametrize("stream", [True, False])
def test_all_beams_are_told(cpp_server: Server, stream: bool) -> None:
    count, expected = thrice(TEXTS[1])
    with Grpc(cpp_server.grpc_address) as connection:
        calls = [
            ask(connection, TEXTS[1], count, model, f"beams {model} {stream}", stream=stream, beam_width=2, **WITHOUT)
            for model in ("ensemble", BLS)
        ]
        said = [[strings(response.outputs["text_output"]) for response in call.finish()] for call in calls]
    for answer in said:
        assert ["".join(beam) for beam in zip(*answer, strict=True)] == [expected] * 2
    assert len(said[1]) == 1


class Named:
    """A response as python models have it from Triton 25.02 on."""

    def __init__(self, output_tensors: list[Any], parameters: dict[str, Any]) -> None:
        pass


def strings(raw: bytes) -> list[str]:
    texts: list[bytes] = deserialize_bytes_tensor(raw).tolist()
    return [text.decode() for text in texts]


def test_an_answer_ends_at_each_end_token_of_the_model(cpp_server: Server) -> None:
    """The backend knows one; the other becomes a stop word, whose text upstream's ensemble does not take away."""
    prompt = f"the tea {ADDED} and two"
    with Grpc(cpp_server.grpc_address) as connection:
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
    with Grpc(cpp_server.grpc_address) as connection:
        answers = [
            ask(connection, f"the tea{SPECIAL} and two", 50, model, f"end {model}").finish()
            for model in ("ensemble", BLS)
        ]
    assert [text_of(answer) for answer in answers] == ["the tea"] * 2
    assert answers[1][-1].finish_reason == "stop"


@pytest.mark.parametrize("stream", [True, False])
def test_stop_words_end_an_answer_and_the_scripted_model_takes_them_away(cpp_server: Server, stream: bool) -> None:
    values = {"stream": stream, "exclude_input_in_output": True, "stop_words": words(" two")}
    with Grpc(cpp_server.grpc_address) as connection:
        theirs, ours = (
            ask(connection, TEXTS[0], 50, model, f"stop {model} {stream}", **values).finish()
            for model in ("ensemble", BLS)
        )
    assert text_of(ours) == "the tea  and"
    assert ours[-1].finish_reason == "stop_word"
    # The ids of a word are found where the tokens are cut as the word's own are; upstream's manner, text and all.
    assert text_of(theirs).startswith("the tea  and")


def test_tokens_times_and_log_probabilities_go_through(cpp_server: Server) -> None:
    wanted = {f"return_{name}": True for name in ("log_probs", "perf_metrics", "num_input_tokens", "num_output_tokens")}
    with Grpc(cpp_server.grpc_address) as connection:
        for model in ("ensemble", BLS):
            responses = ask(connection, TEXTS[0], 7, model, f"figures {model}", **wanted).finish()
            last = responses[-1]
            assert last.count("num_input_tokens") == len(ids_of(TEXTS[0]))
            told = [
                response.count("num_output_tokens") for response in responses if "num_output_tokens" in response.outputs
            ]
            # The backend counts what each response brings, the scripted model says the whole in the end.
            assert told == ([1] * 7 if model == "ensemble" else [7])
            each = b"".join(response.outputs["output_log_probs"] for response in responses)
            assert np.frombuffer(each, np.float32).tolist() == [-0.5] * 7
            assert np.frombuffer(last.outputs["arrival_time_ns"], np.int64)[0] > 0


def test_what_only_our_engines_know_is_no_input_here(cpp_server: Server) -> None:
    values = {"text_input": "a", "max_tokens": 1}
    with Grpc(cpp_server.grpc_address) as connection:
        refused = connection.send(request("ensemble", {**values, "priority": 1})).error()
        told = connection.send(request(BLS, {**values, "priority": 1})).error()
    assert "unexpected inference input 'priority' for model 'ensemble'" in refused
    assert told == "priority is not known to this deployment's engine; leave it out [unsupported_input]"


def stop(request_id: str) -> Any:
    values = {"input_ids": np.zeros((1, 1), np.int32), "input_lengths": 1, "request_output_len": 1, "stop": True}
    return request("tensorrt_llm", values, request_id)


def test_a_full_queue_refuses_and_whoever_is_gone_makes_room(cpp_server: Server) -> None:
    """Clients that leave are noticed by the scripted model; a stop request ends an ensemble's stream by its id."""
    with Grpc(cpp_server.grpc_address) as connection:
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


def test_the_backend_counts_a_prompt_that_it_echoes_and_all_beams(cpp_server: Server) -> None:
    """What the contract says of `num_output_tokens` on an ensemble's whole answer."""
    asked: dict[str, Any] = {"stream": False, "return_num_output_tokens": True}
    prompt = len(ids_of(TEXTS[0]))
    with Grpc(cpp_server.grpc_address) as connection:
        for model, values, expected in (
            ("ensemble", {}, prompt + 7),
            ("ensemble", WITHOUT, 7),
            ("ensemble", {**WITHOUT, "beam_width": 2}, 14),
            (BLS, {}, 7),
        ):
            (whole,) = ask(connection, TEXTS[0], 7, model, **asked, **values).finish()
            assert whole.count("num_output_tokens") == expected, (model, values)


SHARED = "everybody's"


@pytest.mark.parametrize("model", ["ensemble", BLS])
def test_the_scripted_model_ends_its_own_requests_alone_whoever_has_their_id(cpp_server: Server, model: str) -> None:
    """A stop word, and a client that leaves, beside a request of the same id that came later and wants all."""
    with Grpc(cpp_server.grpc_address) as connection:
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
    with Grpc(cpp_server.grpc_address) as connection:
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
    with Grpc(cpp_server.grpc_address) as connection:
        assert connection.send(stop("")).error() == "Trying to stop a request but request ID is not provided"
        assert connection.send(stop("nobody's")).finish()[0].error is None


def test_without_decoupling_each_request_gets_one_answer(engine: Path) -> None:
    text = TEXTS[1]
    ids = ids_of(text)
    options = DeploymentOptions(decoupled=False, settings={"postprocessing_instance_count": 2})
    with stand_in_backend(), Server(engine, options) as server, Grpc(server.grpc_address) as connection:
        for model in ("ensemble", BLS):
            (whole,) = ask(connection, text, len(ids), model, stream=False, exclude_input_in_output=True).finish()
            assert whole.text == TOKENIZER.decode(ids)
        sentence = ask(connection, text, 5, "ensemble").error()
        assert sentence.endswith("Streaming is only supported if model is deployed using decoupled mode.")
        several = {
            "text_input": np.array([[b"a"], [b"b"]], np.object_),
            "max_tokens": np.array([[2], [2]], np.int32),
        }
        refused = connection.send(request("ensemble", several)).error()
        assert "Batch size > 1 requires the tensorrt_llm backend to be using decoupled" in refused


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
    with stand_in_backend(), pytest.raises(DeployError) as caught:
        Server(gpu_engine("llama", **made_for)).start()
    assert sentence in str(caught.value)
