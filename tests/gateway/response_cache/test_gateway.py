"""The response cache of a running gateway: what a client gets, and what is computed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inflight.cli import main
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.engines import TinyEngine
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, get, post
from tests.fixtures.server import fake_engine
from tests.fixtures.waiting import wait_until, whole_lines
from tests.standins.faulty_network.proxy import FaultyNetwork

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Is there tea?"}], "max_tokens": 8}
ROUTES = f"""
routes:
  tea: {{targets: [{{model: {MODEL}}}], cache: true}}
  plain: {{targets: [{{model: {MODEL}}}]}}
  checked: {{targets: [{{model: {MODEL}}}], cache: true}}
checks: [{{kind: deny, patterns: [hemlock], at: after, action: redact, models: [checked]}}]
"""
Keys = dict[str, dict[str, str]]
"""Headers with keys, by the names of these."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def keys(place: Path) -> Keys:
    names = ("shop", "other", "plain", "crowd", "audited")
    made = [ApiKey.new(name, cache=name != "plain", trusted=True) for name in names]
    return {key.name: {"authorization": f"Bearer {add_key(place / 'keys.json', key)}"} for key in made}


@pytest.fixture(scope="module")
def cached(hurried_server: Server, place: Path, keys: Keys) -> Iterator[GatewayProcesses]:
    (place / "routes.yaml").write_text(ROUTES)
    paths = {"key_file": "keys.json", "state_dir": "state", "audit": "audit.jsonl", "routes": "routes.yaml"}
    with running_gateway(hurried_server, **{name: str(place / file) for name, file in paths.items()}) as running:
        yield running


def ask(
    gateway: GatewayProcesses, headers: dict[str, str], path: str = CHAT, **fields: Any
) -> tuple[str | None, Answer]:
    """Return what the cache did, and the answer."""
    answer = post(gateway, path, {"model": MODEL, "temperature": 0, **fields}, headers)
    assert answer.status == 200, answer.body
    return answer.headers.get("x-inflight-cache"), answer


def body_of(answer: Answer) -> bytes:
    return answer.body.replace(b": keep-alive\n\n", b"")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {**MESSAGES, "n": 3, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**MESSAGES, "stream": True, "stream_options": {"include_usage": True}, "n": 2}),
        (COMPLETIONS, {"prompt": ["tea", "Tea "], "max_tokens": 5, "echo": True}),
        (COMPLETIONS, {"prompt": [5, 6], "max_tokens": 5, "stream": True, "logprobs": 1}),
        (RESPONSES, {"input": "Tea?", "max_output_tokens": 8, "metadata": {"a": "b"}}),
        (RESPONSES, {"input": "Tea?", "max_output_tokens": 8, "stream": True}),
    ],
)
def test_an_answer_is_replayed_as_it_was_sent(
    cached: GatewayProcesses, keys: Keys, path: str, body: dict[str, Any]
) -> None:
    asked = [ask(cached, keys["shop"], path, **body) for _ in range(3)]
    assert [result for result, _ in asked] == ["miss", "hit", "hit"]
    assert len({body_of(answer) for _, answer in asked}) == 1
    (kind,) = {answer.headers["content-type"] for _, answer in asked}
    assert kind.startswith("text/event-stream" if body.get("stream") else "application/json")


@pytest.mark.parametrize(
    ("key", "fields", "results"),
    [
        ("shop", {}, ["miss", "hit"]),
        ("other", {}, ["miss", "hit"]),
        ("plain", {}, [None, None]),
        ("plain", {"model": "tea"}, ["miss", "hit"]),
        ("plain", {"model": "plain"}, [None, None]),
        ("shop", {"temperature": 1}, ["off", "off"]),
        ("shop", {"temperature": 1, "seed": 4}, ["miss", "hit"]),
    ],
)
def test_only_opted_in_requests_that_decide_their_answer_are_cached(
    cached: GatewayProcesses, keys: Keys, key: str, fields: dict[str, Any], results: list[str | None]
) -> None:
    assert [ask(cached, keys[key], **MESSAGES, **fields)[0] for _ in range(2)] == results


def test_an_answer_is_stored_as_checks_left_it(cached: GatewayProcesses, keys: Keys) -> None:
    body = {"model": "checked", "prompt": "hemlock tea", "max_tokens": 16}
    asked = [ask(cached, keys["plain"], COMPLETIONS, **body) for _ in range(2)]
    assert [result for result, _ in asked] == ["miss", "hit"]
    for _, answer in asked:
        assert (b"[deny]" in answer.body, b"hemlock" in answer.body) == (True, False)


def test_64_identical_requests_at_once_are_computed_once(cached: GatewayProcesses, keys: Keys) -> None:
    body = {**MESSAGES, "max_tokens": 50, "stream": True}
    with ThreadPoolExecutor(64) as pool:
        asked = list(pool.map(lambda _: ask(cached, keys["crowd"], **body), range(64)))
    assert sorted(str(result) for result, _ in asked) == ["hit"] * 63 + ["miss"]
    assert len({body_of(answer) for _, answer in asked}) == 1
    wait_until(lambda: figure(cached, keys, 'tokens_total{kind="output",tenant="crowd"}') == 50)


def figure(gateway: GatewayProcesses, keys: Keys, name: str) -> float:
    lines = get(gateway, "/metrics", keys["shop"]).body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"inflight_gateway_{name}"))


def test_the_audit_log_and_the_metrics_say_what_the_cache_did(
    cached: GatewayProcesses, keys: Keys, place: Path
) -> None:
    body = {**MESSAGES, "max_tokens": 11}
    ids = [ask(cached, keys["audited"], **body)[1].headers["x-request-id"] for _ in range(2)]
    wait_until(lambda: figure(cached, keys, 'cached_requests_total{result="hit",tenant="audited"}') == 1)

    def written() -> list[dict[str, Any]]:
        return [line for line in whole_lines(place / "audit.jsonl") if line["request_id"] in ids]

    wait_until(lambda: len(written()) == 2)
    hit, miss = sorted(written(), key=lambda line: str(line["cache"]))  # either may be written first
    assert [(line["cache"], line["output_tokens"]) for line in (miss, hit)] == [("miss", 11), ("hit", 0)]
    assert [hit[name] for name in ("engine", "finish_reasons", "status")] == [miss["engine"], ["length"], 200]


def test_clearing_empties_the_cache_at_once(
    cached: GatewayProcesses, keys: Keys, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert [ask(cached, keys["shop"], **{**MESSAGES, "max_tokens": 6})[0] for _ in range(2)] == ["miss", "hit"]
        main(["cache", "clear", "--state-dir", str(place / "state")])
    main(["cache", "clear", "--state-dir", str(place / "none")])
    assert "Removed 0 " in capsys.readouterr().out.splitlines()[2]


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True], ids=["behind a proxy", "in place"])
def test_a_new_engine_empties_the_cache(
    tiny_engine: TinyEngine, tmp_path: Path, keys: Keys, place: Path, in_place: bool
) -> None:
    options = DeploymentOptions(parameters=fake_engine(step_seconds=0.001))
    engine, other = tmp_path / "engine", tiny_engine("llama", "bf16")
    shutil.copytree(tiny_engine("llama"), engine)
    with ExitStack() as stack:
        first = stack.enter_context(Server(engine, options))
        network = stack.enter_context(FaultyNetwork(first.grpc_address))
        settings = {"key_file": str(place / "keys.json"), "state_dir": str(tmp_path)}
        gateway = stack.enter_context(running_gateway(network.address, **settings))

        def result() -> str | None:
            answer = post(gateway, CHAT, {"model": MODEL, "temperature": 0, **MESSAGES}, keys["shop"])
            return answer.headers.get("x-inflight-cache") if answer.status == 200 else str(answer.status)

        assert [result() for _ in range(2)] == ["miss", "hit"]
        if in_place:
            shutil.rmtree(engine)
            shutil.copytree(other, engine)
        else:
            network.target = stack.enter_context(Server(other, options)).grpc_address
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: result() == "miss", seconds=60)
        assert {result() for _ in range(5)} == {"hit"}
