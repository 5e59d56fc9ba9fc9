"""The response cache of a running gateway: what a client gets, and what is computed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from inflight.cli import main
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.engines import TinyEngine
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, get, post
from tests.fixtures.server import fake_engine
from tests.fixtures.waiting import wait_until
from tests.standins.faulty_network.proxy import FaultyNetwork

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = {"messages": [{"role": "user", "content": "Is there tea?"}], "max_tokens": 8}
TOOLS = [{"type": "function", "function": {"name": "brew", "parameters": {"type": "object", "properties": {}}}}]
ROUTES = f"routes: {{tea: {{targets: [{{model: {MODEL}}}], cache: true}}, plain: {{targets: [{{model: {MODEL}}}]}}}}"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, MESSAGES),
    (CHAT, {**MESSAGES, "n": 3, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {**MESSAGES, "stream": True, "stream_options": {"include_usage": True}, "n": 2}),
    (COMPLETIONS, {"prompt": ["tea", "Tea "], "max_tokens": 5, "echo": True}),
    (COMPLETIONS, {"prompt": [5, 6], "max_tokens": 5, "stream": True, "logprobs": 1}),
    (RESPONSES, {"input": "Tea?", "max_output_tokens": 8, "metadata": {"a": "b"}}),
    (RESPONSES, {"input": "Tea?", "max_output_tokens": 8, "stream": True}),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def keys(place: Path) -> dict[str, dict[str, str]]:
    """Headers with keys, by the names of these."""
    made = [ApiKey.new(name, cache=name != "plain", trusted=True) for name in ("shop", "other", "plain")]
    return {key.name: {"authorization": f"Bearer {add_key(place / 'keys.json', key)}"} for key in made}


@pytest.fixture(scope="module")
def cached(hurried_server: Server, place: Path, keys: dict[str, Any]) -> Iterator[GatewayProcesses]:
    (place / "routes.yaml").write_text(ROUTES)
    paths = {"key_file": "keys.json", "state_dir": "state", "audit": "audit.jsonl", "routes": "routes.yaml"}
    with running_gateway(hurried_server, **{name: str(place / file) for name, file in paths.items()}) as running:
        yield running


def ask(gateway: GatewayProcesses, path: str, headers: dict[str, str], **fields: Any) -> tuple[str | None, Answer]:
    answer = post(gateway, path, {"model": MODEL, "temperature": 0, **fields}, headers)
    assert answer.status == 200, answer.body
    return answer.headers.get("x-inflight-cache"), answer


def comparable(answer: Answer) -> tuple[Any, list[str]]:
    """What must be the same of an answer and its replay, and the ids and times, which must not."""
    text = answer.body.replace(b": keep-alive\n\n", b"").decode()
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith(("data: {", "{"))]
    events = [json.loads(line) for line in lines]
    first = events[0].get("response", events[0])
    name = first["id"].rpartition("_" if first["object"] == "response" else "-")[2]
    created = str(first.get("created") or first["created_at"])
    return text.replace(name[:16], "ID").replace(name[16:], "").replace(created, "TIME"), [name]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_an_answer_is_replayed_as_it_was_sent(
    cached: GatewayProcesses, keys: dict[str, dict[str, str]], path: str, body: dict[str, Any]
) -> None:
    asked = [ask(cached, path, keys["shop"], **body) for _ in range(3)]
    assert [result for result, _ in asked] == ["miss", "hit", "hit"]
    (text, names), *others = [comparable(answer) for _, answer in asked]
    assert [each for each, _ in others] == [text, text]
    assert len({*names, *(each for _, more in others for each in more)}) == 3
    types = [answer.headers["content-type"] for _, answer in asked]
    assert len(set(types)) == 1
    assert types[0].startswith("text/event-stream" if body.get("stream") else "application/json")


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_reads_a_replay(cached: GatewayProcesses, keys: dict[str, dict[str, str]], stream: bool) -> None:
    token = keys["shop"]["authorization"].removeprefix("Bearer ")
    fields: Any = {"model": MODEL, "temperature": 0, "stream": stream, **MESSAGES, "max_tokens": 9, "user": "ann"}
    with openai_client(cached, api_key=token) as client:
        answers = [client.chat.completions.create(**fields) for _ in range(2)]
        read = [list(each) if isinstance(each, openai.Stream) else [each] for each in answers]
    assert [each.id for each in read[0]] != [each.id for each in read[1]]
    assert [each.choices for each in read[0]] == [each.choices for each in read[1]]


def test_only_opted_in_requests_for_a_function_of_themselves_are_cached(
    cached: GatewayProcesses, keys: dict[str, dict[str, str]]
) -> None:
    body = {**MESSAGES, "max_tokens": 7}
    results = {
        name: [ask(cached, CHAT, keys[key], **{**body, **fields})[0] for _ in range(2)]
        for name, key, fields in (
            ("shop", "shop", {}),
            ("other tenant", "other", {}),
            ("plain key", "plain", {}),
            ("route", "plain", {"model": "tea"}),
            ("plain route", "plain", {"model": "plain"}),
            ("sampled", "shop", {"temperature": 1}),
            ("seeded", "shop", {"temperature": 1, "seed": 4}),
        )
    }
    assert results == {
        "shop": ["miss", "hit"],
        "other tenant": ["miss", "hit"],
        "plain key": [None, None],
        "route": ["miss", "hit"],
        "plain route": [None, None],
        "sampled": ["off", "off"],
        "seeded": ["miss", "hit"],
    }


def test_64_identical_requests_at_once_are_computed_once(
    cached: GatewayProcesses, keys: dict[str, dict[str, str]]
) -> None:
    body, name = (
        {**MESSAGES, "max_tokens": 50, "stream": True},
        'inflight_gateway_tokens_total{kind="output",tenant="shop"}',
    )
    before = figure(cached, keys, name)
    with ThreadPoolExecutor(64) as pool:
        asked = list(pool.map(lambda _: ask(cached, CHAT, keys["shop"], **body), range(64)))
    assert sorted(str(result) for result, _ in asked) == ["hit"] * 63 + ["miss"]
    assert len({comparable(answer)[0] for _, answer in asked}) == 1
    assert figure(cached, keys, name) == before + 50


def figure(gateway: GatewayProcesses, keys: dict[str, dict[str, str]], name: str) -> float:
    lines = get(gateway, "/metrics", keys["shop"]).body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_the_audit_log_and_the_metrics_say_what_the_cache_did(
    cached: GatewayProcesses, keys: dict[str, dict[str, str]], place: Path
) -> None:
    hits = 'inflight_gateway_cached_requests_total{result="hit",tenant="other"}'
    before = figure(cached, keys, hits)
    body = {**MESSAGES, "max_tokens": 11}
    ids = [ask(cached, CHAT, keys["other"], **body)[1].headers["x-request-id"] for _ in range(2)]
    assert figure(cached, keys, hits) == before + 1
    lines = wait_until(lambda: [line for line in audit(place) if line["request_id"] in ids][1:] and audit(place))
    miss, hit = [line for line in lines if line["request_id"] in ids]
    assert [(line["cache"], line["output_tokens"]) for line in (miss, hit)] == [("miss", 11), ("hit", 0)]
    assert [hit[name] for name in ("engine", "finish_reasons", "status")] == [miss["engine"], ["length"], 200]


def audit(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "audit.jsonl").read_text().splitlines()]


def test_clearing_empties_the_cache_at_once(
    cached: GatewayProcesses, keys: dict[str, dict[str, str]], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {**MESSAGES, "max_tokens": 6}
    assert [ask(cached, CHAT, keys["shop"], **body)[0] for _ in range(2)] == ["miss", "hit"]
    for options in (["--state-dir", str(place / "state")], ["--state-dir", str(place / "none")]):
        main(["cache", "clear", *options])
    assert "Removed 0 answers" in capsys.readouterr().out.splitlines()[1]
    assert [ask(cached, CHAT, keys["shop"], **body)[0] for _ in range(2)] == ["miss", "hit"]


@pytest.mark.slow
def test_a_new_engine_empties_the_cache_also_where_a_proxy_hides_the_change(
    tiny_engine: TinyEngine, tmp_path: Path, keys: dict[str, dict[str, str]], place: Path
) -> None:
    options = DeploymentOptions(parameters=fake_engine(step_seconds=0.001))
    with ExitStack() as stack:
        first, second = (stack.enter_context(Server(tiny_engine("llama", each), options)) for each in ("fp32", "bf16"))
        network = stack.enter_context(FaultyNetwork(first.grpc_address))
        settings = {"key_file": str(place / "keys.json"), "state_dir": str(tmp_path)}
        gateway = stack.enter_context(running_gateway(network.address, **settings))

        def result() -> str | None:
            answer = post(gateway, CHAT, {"model": MODEL, "temperature": 0, **MESSAGES}, keys["shop"])
            return answer.headers.get("x-inflight-cache") if answer.status == 200 else str(answer.status)

        assert [result() for _ in range(2)] == ["miss", "hit"]
        network.target = second.grpc_address
        first.stop()
        stopped = time.monotonic()
        wait_until(lambda: result() == "miss")
        assert time.monotonic() - stopped < 10  # the gateway looks each second, beside what else the machine does
        assert {result() for _ in range(5)} == {"hit"}
