"""Bad requests: each is answered with a sentence that names what is wrong, and no other client notices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inflight.deploy.server.server import Server
from tests.serving.raw_requests import GrpcConnection, generate, generate_stream, request

GOOD = {"text_input": "hello", "max_tokens": 4, "stream": True}


@pytest.fixture(autouse=True, scope="module")
def streams_run_unharmed(server: Server) -> Iterator[None]:
    """Beside all that is bad here streams run, one after the other, and end as they would alone; the server runs on."""
    with GrpcConnection(server.grpc_address) as connection:

        def answer() -> str:
            responses = connection.text("The quick brown fox", 500, end_id=-1).finish()
            return "".join(response.error or response.text for response in responses)

        def run() -> None:
            while not over.is_set():
                beside.append(answer())

        alone, beside, over = answer(), list[str](), threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        yield
        over.set()
        thread.join()
        assert set(beside) == {alone}
        assert connection.text("hello", 4, end_id=-1).finish()[-1].count("num_output_tokens") == 4
    assert server.ready
    assert server.restarts == 0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"text_input": "hello " * 1000}, "the prompt's 5001 tokens and max_tokens of 4 make 5005, and the engine"),
        ({"max_tokens": 5000}, "max_tokens of 5000 make 5005, and the engine takes 2048"),
        ({"text_input": "ab " * 350_000}, "text_input has 1050000 bytes, more than the 2048 tokens"),
        ({"text_input": "a" * 10_000_000}, "text_input has 10000000 bytes, more than the 2048 tokens"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
        ({"max_tokens": -5}, "max_tokens is -5; it must be 1 or more"),
        ({"text_input": b"tea \xff"}, "text_input is not valid UTF-8: byte 4 of 5"),
        ({"text_input": "a\0b"}, "text_input holds a NUL at character 1"),
        ({"max_tokens": np.array([[4]])}, "'max_tokens' data-type is 'INT64', but model 'ensemble' expects 'INT32'"),
        ({"text_input": np.array([[4]], np.int32)}, "'text_input' data-type is 'INT32'"),
        ({"max_tokens": np.array([[4, 5]], np.int32)}, "unexpected shape for input 'max_tokens'"),
        ({"max_tokens": np.array([4], np.int32)}, "unexpected shape for input 'max_tokens'"),
        ({"heat": np.array([[1.0]], np.float32)}, "unexpected inference input 'heat'"),
        ({"temperature": float("nan")}, "temperature is nan; it must be 0 or more"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 2}, "top_p is 2; it must be at most 1"),
        ({"top_k": -1}, "top_k is -1; it must be 0 or more"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be above 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
        ({"frequency_penalty": 9}, "frequency_penalty is 9; it must be between -2 and 2"),
        ({"min_tokens": -1}, "min_tokens is -1; it must be 0 or more"),
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
        ([5, -1], {}, "token id -1 is outside the vocabulary of 1536 tokens"),
        ([5, 1536], {}, "token id 1536 is outside the vocabulary"),
        ([5, 2**31 - 1], {}, "token id 2147483647 is outside the vocabulary"),
        ([], {}, "the prompt holds no token"),
        ([5, 6], {"input_lengths": 3}, "input_lengths is 3, and input_ids holds 2 token ids"),
        ([5, 6], {"input_lengths": -3}, "input_lengths is -3"),
        ([5] * 2045, {}, "make 2049, and the engine takes 2048"),
        ([5], {"input_ids": np.array([[5]])}, "'input_ids' data-type is 'INT64'"),
        ([5], {"input_ids": np.array([5], np.int32)}, "input_ids"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_to_the_engines_model(
    server: Server, ids: list[int], values: dict[str, Any], sentence: str
) -> None:
    with GrpcConnection(server.grpc_address) as connection:
        assert sentence in connection.tokens(ids, 4, **values).error()


def test_tensors_whose_bytes_do_not_fit_their_shapes(server: Server) -> None:
    long, short = request("ensemble", GOOD), request("ensemble", GOOD)
    long.raw_input_contents[0] = b"\xff\xff\xff\x7fab"
    short.raw_input_contents[1] = b"\x01\x00"
    with GrpcConnection(server.grpc_address) as connection:
        assert "expecting string of length 2147483647 but only 2 bytes" in connection.send(long).error()
        assert "input byte size mismatch for input 'max_tokens'" in connection.send(short).error()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"text_input": "a", ', "failed to parse the request JSON"),
        (b"", "failed to parse the request JSON"),
        (b'{"text_input": "a\xff", "max_tokens": 2}', "text_input is not valid UTF-8: byte 1 of 2"),
        (b'{"text_input": "a", "max_tokens": 2, "temperature": NaN}', "temperature is nan"),
        ({"max_tokens": 2}, "text_input is missing; send the prompt's text, or messages [invalid_request]"),
        ({"text_input": "a", "top_k": 1}, "max_tokens is missing; send how many tokens"),
        ({"text_input": "a", "max_token": 2}, "there is no input 'max_token'; did you mean 'max_tokens'?"),
        ({"text_input": "a\0b", "max_tokens": 2}, "text_input holds a NUL at character 1"),
        ({"text_input": "a", "max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
        ({"text_input": "a", "max_tokens": "two"}, "non-signed-integer"),
        ({"text_input": 5, "max_tokens": 2}, "non-string"),
        ({"text_input": ["a", "b"], "max_tokens": 2}, "'text_input' batch size does not match"),
        (
            {"text_input": "a", "max_tokens": 2, "temprature": 0.5},
            "no input 'temprature'; did you mean 'temperature'?",
        ),
        ({"text_input": "a", "max_tokens": 2, "xyz": 1}, "there is no input 'xyz'; see the model's metadata"),
        ({"text_input": "ab " * 3_500_000, "max_tokens": 2}, "text_input has 10500000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_over_http(server: Server, body: Any, sentence: str) -> None:
    status, answer = generate(server.http_address, body)
    assert status in (400, 500)
    assert sentence in answer["error"]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize(
    ("body", "code"),
    [({"max_tokens": 0, "text_input": "a"}, "invalid_parameter"), ({"max_tokens": 2}, "invalid_request")],
)
def test_a_bad_request_for_a_stream_over_http(server: Server, model: str, body: dict[str, Any], code: str) -> None:
    ((_, event),) = generate_stream(server.http_address, body, model)
    assert event["error"].endswith(f"[{code}]")


def test_names_of_the_protocol_and_empty_values_are_no_unknown_inputs(server: Server) -> None:
    body = {"text_input": "a", "max_tokens": 2, "id": "x", "priority": 0, "bad_words": "", "stop_words": ""}
    status, answer = generate(server.http_address, body)
    assert (status, answer["id"]) == (200, "x")
