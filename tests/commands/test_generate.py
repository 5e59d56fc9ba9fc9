"""`inflight generate` against a real gRPC server with a scripted answer."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.client.scripted_server import error, response, serving


def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    yield response("お")
    yield response("茶")
    yield response(".", "stop", tokens_in=3, tokens_out=4)


@pytest.fixture
def server() -> Iterator[tuple[Any, str]]:
    with serving(answer) as (server, address):
        yield server, address


def generate(
    address: str, *arguments: str | bytes, stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    program = "from inflight.cli import main; main()"
    command = [sys.executable, "-c", program, "generate", "--address", address, *arguments]
    return subprocess.run(
        command, capture_output=True, input=stdin, check=False, timeout=60, env=os.environ | variables
    )


def sent(server: Any) -> dict[str, bytes]:
    (request,) = server.requests
    return {tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)}


def test_the_text_goes_to_stdout_and_the_summary_to_stderr(server: tuple[Any, str]) -> None:
    done = generate(server[1], "tell", "--max-tokens", "9", "--top-k", "5")
    assert done.returncode == 0
    assert done.stdout.decode() == "お茶.\n"
    assert done.stderr.decode().startswith("[4 tokens in ")
    assert "ended by stop" in done.stderr.decode()
    inputs = sent(server[0])
    assert struct.unpack("<i", inputs["max_tokens"]) == (9,)
    assert struct.unpack("<i", inputs["top_k"]) == (5,)
    assert inputs["stream"] == b"\1"


def test_json_is_one_object_a_step(server: tuple[Any, str]) -> None:
    lines = [json.loads(line) for line in generate(server[1], "tell", "--json").stdout.splitlines()]
    assert [line["text"] for line in lines] == ["お", "茶", "."]
    assert lines[-1] == {"text": ".", "finish_reason": "stop", "input_tokens": 3, "output_tokens": 4}


def test_no_stream_asks_for_one_answer(server: tuple[Any, str]) -> None:
    done = generate(server[1], "tell", "--no-stream", "--json")
    assert json.loads(done.stdout) == {"text": "お茶.", "finish_reason": "stop", "input_tokens": 3, "output_tokens": 4}
    assert sent(server[0])["stream"] == b"\0"


def test_a_dash_reads_the_prompt_from_stdin(server: tuple[Any, str]) -> None:
    assert generate(server[1], "-", stdin="お茶\nplease".encode()).returncode == 0
    assert sent(server[0])["text_input"][4:].decode() == "お茶\nplease"


@pytest.mark.parametrize(("prompt", "stdin"), [("-", b"tea \xff"), (b"tea \xff", b"")])
def test_a_prompt_that_is_no_utf_8_is_a_users_mistake(
    server: tuple[Any, str], prompt: str | bytes, stdin: bytes
) -> None:
    done = generate(server[1], prompt, stdin=stdin, PYTHONIOENCODING="utf-8:strict")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("Error: the prompt can't be encoded as UTF-8")
    assert done.stderr.decode().endswith("[invalid_text]\n")


def test_the_servers_error_is_one_sentence_after_the_text_before_it() -> None:
    def script(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield response("tea")
        yield error("in ensemble 'ensemble', the engine's process died (signal 9) [engine_died]")

    with serving(script) as (_, address):
        done = generate(address, "tell")
    assert done.returncode == 1
    assert done.stdout == b"tea"
    assert done.stderr == b"Error: the engine's process died (signal 9) [engine_died]\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-k", "-4"], "top_k is -4"),
        (["--max-tokens", "0"], "0 is not in the range"),
        (["--timeout", "0"], "0.0 is not in the range"),
    ],
)
def test_values_out_of_bounds_are_named_before_a_server_is_asked(arguments: list[str], words: str) -> None:
    done = generate("127.0.0.1:1", "tell", *arguments)
    assert done.returncode == 2
    assert words in done.stderr.decode()


def test_a_reader_that_goes_away_is_no_traceback(server: tuple[Any, str]) -> None:
    command = f"{sys.executable} -c 'from inflight.cli import main; main()' generate --address {server[1]} tell | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60)
    assert b"Traceback" not in done.stderr
