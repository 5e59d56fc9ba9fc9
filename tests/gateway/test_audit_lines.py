"""What the audit log says of each request of a gateway with two processes, whose clients do all that is refused too."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.deploy.server.server import Server
from inflight.gateway.audit.check import summarize, verify
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.errors import raises
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, get, post
from tests.fixtures.waiting import wait_until, whole_lines
from tests.gateway.test_batches import create, ended, rows
from tests.serving.metrics_page import page_of
from tests.standins.openai_servers.server import Fault, openai_server

PROMPT = "a secret of tea"


class Audited:
    """A gateway with keys, routes and a log."""

    def __init__(self, gateway: GatewayProcesses, folder: Path, server: Server, **tokens: str) -> None:
        self.gateway, self.folder, self.server, self.tokens = gateway, folder, server, tokens
        self.path = folder / "audit.jsonl"

    def send(self, case: str, key: str = "app", path: str = "/v1/completions", **body: Any) -> int:
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4, **body}
        headers = {"x-request-id": case, "authorization": f"Bearer {self.tokens.get(key, key)}"}
        return post(self.gateway, path, body, headers).status

    @property
    def lines(self) -> list[dict[str, Any]]:
        return whole_lines(self.path)

    def line(self, case: str) -> dict[str, Any]:
        """Return the line of a request, once it is written."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.lines if each["request_id"] == case]

        wait_until(found)
        (line,) = found()
        return line


@pytest.fixture(scope="module")
def audited(hurried_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audited")
    keys, routes = folder / "keys.json", folder / "routes.yaml"
    made = {
        "app": ApiKey.new("my app", tenant="shop"),
        "narrow": ApiKey.new("narrow", models=["other"]),
        "spent": ApiKey.new("spent", quotas=Quotas(tokens_per_day=1)),
    }
    tokens = {name: add_key(keys, key) for name, key in made.items()}
    with ExitStack() as stack:
        tea = stack.enter_context(openai_server("vllm", ("tea",)))
        doomed = stack.enter_context(openai_server("openai", ("doomed",), faults=[Fault("status", 503)] * 100))
        shadow = {"model": "tea", "file": "shadow.jsonl"}
        targets = {
            "failing": [{"server": doomed.address}, {"model": MODEL, "weight": 0}],
            "shadowed": [{"model": MODEL}],
        }
        text = {name: {"targets": each} for name, each in targets.items()}
        routes.write_text(json.dumps({"routes": {**text, "shadowed": {**text["shadowed"], "shadow": shadow}}}))
        settings = {"key_file": str(keys), "routes": str(routes), "audit": str(folder / "audit.jsonl"), "workers": 2}
        gateway = stack.enter_context(
            running_gateway(hurried_server, tea.address, **settings, max_body_bytes=5000, audit_max_bytes=2**20)
        )
        found = Audited(gateway, folder, hurried_server, **tokens)
        wait_until(lambda: all(found.send("warm", model="tea") == 200 for _ in range(20)))  # in each process
        yield found


@pytest.mark.parametrize(
    ("case", "sent", "expected"),
    [
        ("ok", {"service_tier": "flex"}, {"status": 200, "key": "my app", "tenant": "shop", "tier": "flex"}),
        ("401", {"key": "sk-inflight-wrong"}, {"status": 401, "code": "invalid_api_key", "key": None, "model": None}),
        ("403", {"key": "narrow"}, {"status": 403, "code": "permission_denied", "key": "narrow", "model": MODEL}),
        ("404", {"model": "none"}, {"status": 404, "code": "model_not_found", "model": "none"}),
        ("404-path", {"path": "/v1/nothing"}, {"status": 404, "code": "not_found", "endpoint": "unknown"}),
        ("413", {"prompt": "x" * 6000}, {"status": 413, "code": "request_too_large", "key": "my app"}),
        ("429", {"key": "spent"}, {"status": 429, "code": "rate_limit_exceeded", "key": "spent"}),
        ("400", {"temperature": "hot"}, {"status": 400, "param": "temperature"}),
        ("key", {"model": "{token}"}, {"status": 404, "model": "[key]"}),
        (
            "embed",
            {"path": "/v1/embeddings", "model": "tea", "input": ["a", "b"], "prompt": None, "max_tokens": None},
            {"status": 200, "endpoint": "/v1/embeddings", "target": "tea#2", "texts": 2},
        ),
    ],
)
def test_a_request_has_its_line(audited: Audited, case: str, sent: dict[str, Any], expected: dict[str, Any]) -> None:
    if sent.get("model") == "{token}":
        sent = {"model": audited.tokens["app"]}
    status = audited.send(case, **sent)
    line = audited.line(case)
    assert (line["event"], line["status"]) == ("request", status)
    assert {name: line[name] for name in expected} == expected
    if status >= 400:
        assert (line["target"], line["output_tokens"]) == (None, 0)


def test_a_line_names_what_answered_under_which_policy(audited: Audited) -> None:
    audited.send("facts", model="shadowed")
    line = audited.line("facts")
    assert (line["route"], line["model"], line["target"]) == ("shadowed", "shadowed", f"{MODEL}#1")
    assert (line["precision"], line["finish_reasons"], line["output_tokens"]) == ("fp32", ["length"], 4)
    assert line["input_tokens"] > 0
    assert len(line["engine"]) == 32
    assert line["routes_sha256"] == hashlib.sha256((audited.folder / "routes.yaml").read_bytes()).hexdigest()
    keys = json.loads((audited.folder / "keys.json").read_text())
    for each in keys["keys"]:
        del each["sha256"]
    policy = json.dumps(keys, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert line["keys_sha256"] == hashlib.sha256(policy.encode()).hexdigest()
    copy = audited.line("facts-shadow")
    assert (copy["event"], copy["target"], copy["key"], copy["route"]) == ("shadow", "tea#2", "my app", "shadowed")


def test_targets_that_failed_are_named(audited: Audited) -> None:
    def sent() -> list[dict[str, Any]]:
        assert audited.send("failover", model="failing") == 200
        return [line for line in audited.lines if line["request_id"] == "failover" and line["failed"]]

    wait_until(sent)
    line = sent()[0]
    assert line["failed"] == ["doomed#3: overloaded"]
    assert (line["target"], line["status"], line["code"]) == (f"{MODEL}#1", 200, None)


def test_a_client_that_leaves_has_a_line_with_what_was_computed(audited: Audited) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", audited.gateway.port)
    body = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 4000})
    headers = {"x-request-id": "left", "authorization": f"Bearer {audited.tokens['app']}"}
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json", **headers})
    wait_until(lambda: page_of(audited.server).requests["scheduled"] >= 1)
    connection.close()
    line = audited.line("left")
    assert (line["status"], line["code"], line["target"]) == (499, "client_left", f"{MODEL}#1")
    assert line["output_tokens"] > 0


def test_rows_of_a_batch_have_lines_with_the_name_of_its_key(audited: Audited) -> None:
    with openai_client(audited.gateway, api_key=audited.tokens["app"]) as client:
        assert ended(client, create(client, rows(5))).request_counts.completed == 5
    wait_until(lambda: [line for line in audited.lines if line["event"] == "batch_row"][4:])
    found = [line for line in audited.lines if line["event"] == "batch_row"]
    assert {(line["key"], line["model"], line["code"]) for line in found} == {("my app", MODEL, None)}
    assert all(line["output_tokens"] == 6 and line["finish_reasons"] for line in found)


def test_the_chain_is_whole_and_has_no_prompts_keys_or_probes(audited: Audited) -> None:
    audited.send("end")
    audited.line("end")
    get(audited.gateway, "/health")
    assert (verify([audited.path]).problem, audited.path.stat().st_mode & 0o777) == ("", 0o600)
    content = audited.path.read_text()
    assert PROMPT not in content
    assert not any(token in content for token in audited.tokens.values())
    assert "sk-inflight-" not in content
    assert "/health" not in content
    counts = summarize([audited.path])
    assert counts["key"]["my app"]["lines"] == sum(line["key"] == "my app" for line in audited.lines)
    assert counts["code"].keys() >= {line["code"] for line in audited.lines if line["code"]}


def test_prompts_are_there_if_asked_for_and_the_end_of_a_gateway_writes_all(
    hurried_server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    with running_gateway(hurried_server, audit=str(path), audit_prompts=True) as gateway:
        text = "sk-inflight-mine " + "x" * 70_000
        for prompt in (PROMPT, text):
            post(gateway, "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})
        with raises(InflightError, "audit_unusable"):
            GatewayProcesses(GatewaySettings((), port=0, audit=str(path)), print).bind()
    short, long = [json.loads(line)["prompt"] for line in path.read_bytes().splitlines()]
    assert json.loads(short) == {"prompt": PROMPT}
    assert "[key] xxx" in long
    assert len(long) < 70_000
