"""Bad requests: each is answered with a sentence that names what is wrong, and no other client notices.

The engine's bounds of each value are in tests/runtime/engine/test_request_values.py and tests/runtime/test_messages.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from inflight.runtime.triton.bounded_strings import MAX_STRINGS
from tests.serving.raw_requests import GrpcConnection, generate, generate_stream, request

GOOD = {"text_input": "hello", "max_tokens": 4, "stream": True}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"text_input": "hello " * 1000}, "the prompt's 5001 tokens and max_tokens of 4 make 5005, and the engine"),
        ({"max_tokens": 5000}, "max_tokens of 5000 make 5005, and the engine takes 2048"),
        ({"text_input": "a" * 10_000_000}, "text_input has 10000000 bytes, more than the 2048 tokens"),
        ({"text_input": b"tea \xff"}, "text_input is not valid UTF-8: byte 4 of 5"),
        ({"max_tokens": np.array([[4]])}, "'max_tokens' data-type is 'INT64', but model 'ensemble' expects 'INT32'"),
        ({"max_tokens": np.array([[4, 5]], np.int32)}, "unexpected shape for input 'max_tokens'"),
        ({"heat": np.array([[1.0]], np.float32)}, "unexpected inference input 'heat'"),
        ({"temperature": float("nan")}, "temperature is nan; it must be 0 or more"),
        ({"top_k": -1}, "top_k is -1; it must be 0 or more"),
        ({"embedding_bias_weights": np.array([[0.5]], np.float32)}, "requires embedding_bias_words; send both"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_bad_request_to_the_ensemble(server: Server, values: dict[str, Any], sentence: str) -> None:
    with GrpcConnection(server.grpc_address) as connection:
        error = connection.send(request("ensemble", {**GOOD, **values})).error()
    assert sentence in error
    assert "Traceback" not in error
    assert "At:" not in error


@pytest.mark.parametrize(
    ("ids", "values", "sentence"),
    [
        ([5, 1536], {}, "token id 1536 is outside the vocabulary"),
        ([], {}, "the prompt holds no token"),
        ([5, 6], {"input_lengths": 3}, "input_lengths is 3, and input_ids holds 2 token ids"),
        ([5] * 2045, {}, "make 2049, and the engine takes 2048"),
        ([5], {"request_output_len": 0}, "request_output_len is 0; it must be 1 or more"),
        ([5], {"input_ids": np.array([5], np.int32)}, "input_ids"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_to_the_engines_model(
    server: Server, ids: list[int], values: dict[str, Any], sentence: str
) -> None:
    with GrpcConnection(server.grpc_address) as connection:
        assert sentence in connection.tokens(ids, 4, **values).error()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"text_input": "a\xff", "max_tokens": 2}', "text_input is not valid UTF-8: byte 1 of 2"),
        ({"max_tokens": 2}, "text_input is missing; send the prompt's text, or messages [invalid_request]"),
        ({"text_input": "a", "top_k": 1}, "max_tokens is missing; send how many tokens"),
        ({"text_input": "a", "max_token": 2}, "there is no input 'max_token'; did you mean 'max_tokens'?"),
        ({"text_input": ["a", "b"], "max_tokens": 2}, "'text_input' batch size does not match"),
        ({"text_input": "a", "max_tokens": 2, "xyz": 1}, "there is no input 'xyz'; see the model's metadata"),
        ({"text_input": "ab " * 3_500_000, "max_tokens": 2}, "text_input has 10500000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_over_http(server: Server, body: Any, sentence: str) -> None:
    status, answer = generate(server.http_address, body)
    assert status in (400, 500)
    assert sentence in answer["error"]


@pytest.mark.parametrize(
    ("body", "code"),
    [({"max_tokens": 0, "text_input": "a"}, "invalid_parameter"), ({"max_tokens": 2}, "invalid_request")],
)
def test_a_bad_request_for_a_stream_over_http(server: Server, body: dict[str, Any], code: str) -> None:
    ((_, event),) = generate_stream(server.http_address, body)
    assert event["error"].endswith(f"[{code}]")


def test_names_of_the_protocol_and_empty_values_are_no_unknown_inputs(server: Server) -> None:
    body = {"text_input": "a", "max_tokens": 2, "id": "x", "priority": 0, "bad_words": "", "stop_words": ""}
    status, answer = generate(server.http_address, body)
    assert (status, answer["id"]) == (200, "x")


def column(*texts: bytes) -> dict[str, Any]:
    lengths = np.full((len(texts), 1), 4, np.int32)
    return {"QUERY": np.array([[text] for text in texts], np.object_), "REQUEST_OUTPUT_LEN": lengths}


LARGE: list[tuple[str, dict[str, Any]]] = [
    (
        "postprocessing",
        {"TOKENS_BATCH": np.full((1, 1, 131_073), 5, np.int32), "SEQUENCE_LENGTH": np.array([[3]], np.int32)},
    ),
    ("preprocessing", {**column(b"tea"), "STOP_WORDS_DICT": np.array([[b""] * (MAX_STRINGS + 1)], np.object_)}),
    (
        "preprocessing",
        {
            **column(b"tea", b"tin"),
            "BAD_WORDS_DICT": np.array([[b"a" * 1024] * 256, [b"b"] + [b""] * 255], np.object_),
        },
    ),
    (
        "preprocessing",
        {
            **column(*[b"tea"] * 64),
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
]


@pytest.mark.parametrize(("model", "values"), LARGE)
def test_what_holds_too_much_is_refused(server: Server, model: str, values: dict[str, Any]) -> None:
    with GrpcConnection(server.grpc_address) as connection:
        assert "[invalid_parameter]" in connection.send(request(model, values)).error()


def test_short_requests_pass_long_ones_and_all_have_their_own_tokens(paced_server: Server) -> None:
    """More than one text of this length is not tokenized before others are served."""
    long, short = column(*[b"the quick brown fox " * 800] * 64), column(b"tea")
    with GrpcConnection(paced_server.grpc_address) as connection:
        ask = connection.stub.ModelInfer
        first = [ask(request("preprocessing", values), timeout=60) for values in (column(long["QUERY"][0, 0]), short)]
        long_ones = [ask.future(request("preprocessing", long), timeout=60) for _ in range(4)]
        passing = [ask(request("preprocessing", short), timeout=60) for _ in range(3)]
        assert not any(call.done() for call in long_ones), "those that came later waited for it"
        for answers, alone in ((passing, first[1]), ([call.result() for call in long_ones], first[0])):
            for answer in answers:
                assert (input_ids(answer) == input_ids(alone)).all()
        many = [ask.future(request("preprocessing", column(long["QUERY"][0, 0])), timeout=60) for _ in range(200)]
        assert not [said for call in many if (said := call.exception()) is not None]


def input_ids(answer: Any) -> Any:
    place = [output.name for output in answer.outputs].index("INPUT_ID")
    ids = np.frombuffer(answer.raw_output_contents[place], np.int32)
    return ids.reshape(answer.outputs[place].shape)
