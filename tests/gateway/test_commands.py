"""`inflight generate` and `inflight chat` through a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client import Client, InflightError, Sampling
from inflight_client._openai.client import OpenAIClient, is_gateway
from inflight_client.retry import NO_RETRY
from inflight_client.sampling import Guide

from inflight.deploy.server.server import Server
from inflight.gateway.key_file import ApiKey, add_key
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.errors import raises
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import MODEL, gauge
from tests.fixtures.waiting import wait_until


def test_an_answer_is_that_of_the_server_itself(gateway: GatewayProcesses, hurried_server: Server) -> None:
    sampling = Sampling(temperature=0.5, seed=3, stop="coffee")
    for prompt in ("Is there tea or coffee?", [{"role": "user", "content": "Is there tea or coffee?"}]):
        options: Any = {"max_tokens": 12, "sampling": sampling, "return_log_probs": True}
        with OpenAIClient(gateway.url) as client, Client(hurried_server.grpc_address) as direct:
            found, wanted = client.generate(prompt, **options), direct.generate(prompt, **options)
        assert (found.text, found.usage, found.log_probs) == (wanted.text, wanted.usage, wanted.log_probs)


def test_leaving_a_stream_cancels_it(gateway: GatewayProcesses) -> None:
    with OpenAIClient(gateway.url) as client, client.stream("tea", max_tokens=3000) as stream:
        assert next(iter(stream)).text
    wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 0)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"max_tokens": 10**6}, "prompt_too_long"),
        ({"timeout": 0.2, "max_tokens": 3000}, "deadline_exceeded"),
        ({"sampling": Sampling(bad_words="x")}, "unsupported_input"),
        ({"sampling": Sampling(end_id=5)}, "unsupported_input"),
        ({"return_token_ids": True}, "unsupported_input"),
        ({"sampling": Sampling(temperature=3)}, "invalid_parameter"),
    ],
)
def test_errors_have_the_client_s_codes(gateway: GatewayProcesses, options: Any, code: str) -> None:
    with OpenAIClient(gateway.url, retry=NO_RETRY) as client, raises(InflightError, code):
        client.generate("tea", **options)


def test_a_guided_answer(model_gateway: GatewayProcesses) -> None:
    with OpenAIClient(model_gateway.url) as client:
        answer = client.generate("tea", sampling=Sampling(guide=Guide("regex", "[ab]{3}")), max_tokens=20)
    assert set(answer.text) <= {"a", "b"}


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1/"])
def test_no_gateway_is_one_sentence(address: str) -> None:
    assert is_gateway(address)
    with OpenAIClient(address, retry=NO_RETRY) as client, raises(InflightError, "server_unreachable"):
        client.generate("tea")


def test_the_commands_use_the_key_of_the_environment(
    hurried_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    token = add_key(path, ApiKey.new("me"))
    with running_gateway(hurried_server, key_file=str(path)) as gateway:
        generate = CommandRunner(monkeypatch, capsys, "generate")
        chat = CommandRunner(monkeypatch, capsys, "chat")
        arguments = ("tea", "--server", gateway.url, "--max-tokens", "4", "--json", "--no-stream")
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        assert "permission_denied" in generate(*arguments).err
        monkeypatch.setenv("OPENAI_API_KEY", token)
        assert generate(*arguments).objects[-1]["usage"]["output_tokens"] == 4
        said = chat("--server", gateway.url, "--model", MODEL, "--max-tokens", "4", stdin=b"Is there tea?\n")
        assert said.out.strip()
        status = CommandRunner(monkeypatch, capsys, "status")
        shown = status("--server", gateway.url, "--json")
        found = json.loads(shown.out)
        assert (shown.code, found["ready"], found["models"], found["in_flight"]) == (0, True, [MODEL], 0)
        monkeypatch.delenv("OPENAI_API_KEY")
        assert status("--server", gateway.url).code == 1
    assert status("--server", gateway.url).code == 1
