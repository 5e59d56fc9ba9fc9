"""The commands at deployments that are not ours (stand-ins here): they say what is there, and render messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inflight_client import Client

from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.engines import TinyCheckpoint
from tests.standins.kserve import StandInServer
from tests.standins.kserve.repository import llmapi, text_models

KINDS = {"tensorrtllm": text_models(), "llmapi": llmapi()}
MESSAGES = [{"role": "user", "content": "tea?"}]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def server(kind: str, checkpoint: Path) -> Iterator[StandInServer]:
    with StandInServer(KINDS[kind], checkpoint) as running:
        yield running


@pytest.fixture(scope="module")
def answer(server: StandInServer, checkpoint: Path) -> str:
    """To MESSAGES, in 6 tokens."""
    with Client(server.grpc_address, chat_template=checkpoint) as client:
        return client.generate(MESSAGES, max_tokens=6).text


def test_status_says_which_deployment_it_is(status: CommandRunner, server: StandInServer, kind: str) -> None:
    done = status("--server", server.grpc_address, "--metrics-url", "http://127.0.0.1:1/metrics", "--json")
    report = json.loads(done.out)
    assert done.code == 0
    assert report["deployment"]["kind"] == kind
    assert (report["deployment"]["version"], report["warning"], report["load"]) == (None, None, None)
    assert {model["name"] for model in report["models"]} == KINDS[kind].keys()


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_messages_are_rendered_with_the_checkpoint_that_is_named(
    runner_of: Callable[[str], CommandRunner], server: StandInServer, checkpoint: Path, answer: str, name: str
) -> None:
    command = runner_of(name)
    asked = ["--max-tokens", "6", "--server", server.grpc_address]
    stdin = b"tea?\n"
    if name == "generate":
        asked += ["--messages", "-"]
        stdin = json.dumps(MESSAGES).encode()
    assert command(*asked, "--chat-template", str(checkpoint), stdin=stdin).out == answer + "\n"
    done = command(*asked, stdin=stdin)
    assert done.code == 1
    assert done.err.endswith("[no_chat_template]\n")
