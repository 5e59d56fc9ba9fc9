"""Requests hold what Triton expects, and errors find their stable codes."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import pytest
from inflight_client import InflightError, Sampling
from inflight_client.protocol import channel_options, delta, error_from_message, error_from_rpc, inference_request
from inflight_client.results import Delta
from tritonclient.grpc import service_pb2


def inputs_of(request: Any) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), raw)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def test_a_plain_request_holds_five_words_and_nothing_that_was_not_asked_for() -> None:
    request = inference_request("ensemble", "お茶", 64, Sampling(), stream=True)
    assert request.model_name == "ensemble"
    assert inputs_of(request) == {
        "text_input": ("BYTES", [1, 1], struct.pack("<I", 6) + "お茶".encode()),
        "max_tokens": ("INT32", [1, 1], struct.pack("<i", 64)),
        "stream": ("BOOL", [1, 1], b"\1"),
        "exclude_input_in_output": ("BOOL", [1, 1], b"\1"),
    }


def test_every_sampling_value_is_sent_with_upstreams_name_and_type() -> None:
    sampling = Sampling(
        temperature=0.5,
        top_k=40,
        top_p=0.25,
        seed=2**64 - 1,
        repetition_penalty=1.25,
        presence_penalty=-2.0,
        frequency_penalty=1.0,
        min_tokens=3,
        end_id=7,
    )
    inputs = inputs_of(inference_request("m", "x", 1, sampling, stream=False))
    assert inputs["stream"][2] == b"\0"
    assert {name: (datatype, raw) for name, (datatype, _, raw) in list(inputs.items())[4:]} == {
        "temperature": ("FP32", struct.pack("<f", 0.5)),
        "top_k": ("INT32", struct.pack("<i", 40)),
        "top_p": ("FP32", struct.pack("<f", 0.25)),
        "seed": ("UINT64", b"\xff" * 8),
        "repetition_penalty": ("FP32", struct.pack("<f", 1.25)),
        "presence_penalty": ("FP32", struct.pack("<f", -2)),
        "frequency_penalty": ("FP32", struct.pack("<f", 1)),
        "min_tokens": ("INT32", struct.pack("<i", 3)),
        "end_id": ("INT32", struct.pack("<i", 7)),
    }


@pytest.mark.parametrize(
    ("final", "expected"), [(None, Delta("tea")), (False, Delta("tea")), (True, Delta("tea", finish_reason=""))]
)
def test_an_answer_that_ends_without_a_reason_has_ended_all_the_same(final: bool | None, expected: Delta) -> None:
    response = service_pb2.ModelStreamInferResponse()
    response.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    response.infer_response.raw_output_contents.append(struct.pack("<I", 3) + b"tea")
    if final is not None:
        response.infer_response.parameters["triton_final_response"].bool_param = final
    assert delta(response) == expected


@pytest.mark.parametrize(
    ("address", "direct"),
    [
        ("127.0.0.1:8001", True),
        ("127.9.9.9:8001", True),
        ("localhost:8001", True),
        ("localhost", True),
        ("[::1]:8001", True),
        ("10.0.0.1:8001", False),
        ("localhost.example:8001", False),
        ("[2001:db8::1]:8001", False),
    ],
)
def test_no_proxy_stands_between_this_machine_and_itself(address: str, direct: bool) -> None:
    assert (("grpc.enable_http_proxy", 0) in channel_options(address)) is direct


@pytest.mark.parametrize("max_tokens", [0, -1, 2**31, 1.5])
def test_max_tokens_is_a_whole_number_above_0(max_tokens: Any) -> None:
    with pytest.raises(InflightError, match=f"max_tokens is {max_tokens}; it must be a whole number, 1 or more") as got:
        inference_request("m", "x", max_tokens, Sampling(), stream=True)
    assert got.value.code == "invalid_parameter"


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(InflightError, match="the prompt can't be encoded as UTF-8") as raised:
        inference_request("m", "tea \ud83d", 4, Sampling(), stream=True)
    assert raised.value.code == "invalid_text"


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        (
            "in ensemble 'ensemble', text_input is empty; send at least one character [empty_prompt]",
            "empty_prompt",
            "text_input is empty; send at least one character",
        ),
        (
            "in ensemble 'demo_ensemble', the engine's process died (signal 9) [engine_died]",
            "engine_died",
            "the engine's process died (signal 9)",
        ),
        ("max_tokens is 0 [of_no_table]", "invalid_request", "max_tokens is 0 [of_no_table]"),
        (
            "Request for unknown model: 'nobody' is not found",
            "model_not_ready",
            "Request for unknown model: 'nobody' is not found",
        ),
        (
            "Stub process 'tensorrt_llm_0_0' is not healthy.",
            "model_not_ready",
            "Stub process 'tensorrt_llm_0_0' is not healthy.",
        ),
    ],
)
def test_a_message_of_the_server_finds_its_code(message: str, code: str, sentence: str) -> None:
    error = error_from_message(message)
    assert (error.code, str(error)) == (code, sentence)


def test_only_what_may_pass_is_worth_another_try() -> None:
    assert error_from_message("gone [engine_died]").retry
    assert not error_from_message("too long [prompt_too_long]").retry


class BrokenCall(grpc.RpcError):  # type: ignore[misc]
    """What grpc raises when a call ends with a status other than OK."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code = lambda: code
        self.details = lambda: details


@pytest.mark.parametrize(
    ("status", "details", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect", "server_unreachable"),
        (grpc.StatusCode.UNAVAILABLE, "errors resolving host:1: address lookup failed", "server_unreachable"),
        (grpc.StatusCode.UNAVAILABLE, "DNS resolution failed for host:1", "server_unreachable"),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "server_gone"),
        (grpc.StatusCode.UNAVAILABLE, "Connection reset by peer", "server_gone"),
        (grpc.StatusCode.CANCELLED, "", "cancelled"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "deadline_exceeded"),
        (grpc.StatusCode.NOT_FOUND, "no such model", "model_not_ready"),
        (grpc.StatusCode.INVALID_ARGUMENT, "unexpected input", "invalid_request"),
        (grpc.StatusCode.INVALID_ARGUMENT, "too long [prompt_too_long]", "prompt_too_long"),
        (grpc.StatusCode.INTERNAL, "", "server_gone"),
        (grpc.StatusCode.INTERNAL, "no idea [of_no_table]", "server_gone"),
    ],
)
def test_a_broken_call_finds_its_code(status: grpc.StatusCode, details: str, code: str) -> None:
    error = error_from_rpc(BrokenCall(status, details), "127.0.0.1:1")
    assert error.code == code
    assert str(error)
