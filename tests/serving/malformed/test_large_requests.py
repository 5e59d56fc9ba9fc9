"""One large request keeps no other waiting: it is refused by its size, or others pass it."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from inflight.deploy.server.server import Server
from inflight.runtime.triton.bounded_strings import MAX_STRINGS
from tests.serving.raw_requests import TIMEOUT, GrpcConnection, request

LONG_TEXT = b"the quick brown fox " * 800
"""As many characters as are tokenized in one piece; more than one of them is not tokenized before others are served."""


def texts(*values: bytes) -> Any:
    return np.array([[value] for value in values], np.object_)


def of_preprocessing(*prompts: bytes, **values: Any) -> Any:
    lengths = np.full((len(prompts), 1), 4, np.int32)
    return request("preprocessing", {"QUERY": texts(*prompts), "REQUEST_OUTPUT_LEN": lengths, **values})


def input_ids(answer: Any) -> Any:
    place = [output.name for output in answer.outputs].index("INPUT_ID")
    ids = np.frombuffer(answer.raw_output_contents[place], np.int32)
    return ids.reshape(answer.outputs[place].shape)


def test_short_requests_pass_long_ones_and_all_have_their_own_tokens(paced_server: Server) -> None:
    with grpc.insecure_channel(paced_server.grpc_address) as channel:
        ask = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        long_one, short_one = (ask(of_preprocessing(text), timeout=TIMEOUT) for text in (LONG_TEXT, b"tea"))
        long_ones = [ask.future(of_preprocessing(*[LONG_TEXT] * 64), timeout=TIMEOUT) for _ in range(4)]
        passing = [ask(of_preprocessing(b"tea"), timeout=TIMEOUT) for _ in range(3)]
        assert not any(call.done() for call in long_ones), "those that came later waited for it"
        for answer in passing:
            assert (input_ids(answer) == input_ids(short_one)).all()
        for call in long_ones:
            assert (input_ids(call.result()) == input_ids(long_one)).all()


def test_many_long_prompts_at_once_are_all_answered(paced_server: Server) -> None:
    with grpc.insecure_channel(paced_server.grpc_address) as channel:
        ask = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        calls = [ask.future(of_preprocessing(LONG_TEXT), timeout=TIMEOUT) for _ in range(200)]
        assert not [said for call in calls if (said := call.exception()) is not None]


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (
            "postprocessing",
            {"TOKENS_BATCH": np.full((1, 1, 131_073), 5, np.int32), "SEQUENCE_LENGTH": np.array([[3]], np.int32)},
        ),
        (
            "preprocessing",
            {
                "QUERY": "tea",
                "REQUEST_OUTPUT_LEN": np.array([[4]], np.int32),
                "STOP_WORDS_DICT": np.array([[b""] * (MAX_STRINGS + 1)], np.object_),
            },
        ),
        (
            "preprocessing",
            {
                "QUERY": texts(b"tea", b"tin"),
                "REQUEST_OUTPUT_LEN": np.full((2, 1), 4, np.int32),
                "BAD_WORDS_DICT": np.array([[b"a" * 1024] * 256, [b"b"] + [b""] * 255], np.object_),
            },
        ),
        (
            "preprocessing",
            {
                "QUERY": texts(*[b"tea"] * 64),
                "REQUEST_OUTPUT_LEN": np.full((64, 1), 4, np.int32),
                "BAD_WORDS_DICT": np.array([[b"#" * 1024] * 256, *[[b""] * 256] * 63], np.object_),
            },
        ),
        (
            "tensorrt_llm",
            {
                "input_ids": np.array([[5, 6, 7]], np.int32),
                "input_lengths": 3,
                "request_output_len": 4,
                "guided_decoding_guide_type": "regex",
                "guided_decoding_guide": "a" * 65_537,
            },
        ),
    ],
)
def test_what_holds_too_much_is_refused(paced_server: Server, model: str, values: dict[str, Any]) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        assert "[invalid_parameter]" in connection.send(request(model, values)).error()
