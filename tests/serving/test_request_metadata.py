"""Where a request comes from, through each model to the engine's events: in the request log and in the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server, ServerSettings
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.server import ENDLESS, paced
from tests.fixtures.waiting import wait_until
from tests.serving.metrics_page import page_of
from tests.serving.model_replies import ENSEMBLE, MODELS, message, prompt_for, stream_of
from tests.serving.raw_requests import GrpcConnection, post

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SOON = 30.0


class LoggedServer:
    """A server with a request log, and what it has reported."""

    def __init__(self, server: Server, path: Path, reports: list[str]) -> None:
        self.server = server
        self.path = path
        self.reports = reports

    def line(self, request_id: str) -> dict[str, Any]:
        """The one line about a request, once it is there."""
        (line,) = wait_until(lambda: [one for one in self.lines() if one["request_id"] == request_id])
        found: dict[str, Any] = line
        return found

    def lines(self) -> list[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture(scope="module")
def logged(tiny_engine: TinyEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedServer]:
    path, reports = tmp_path_factory.mktemp("log") / "requests.jsonl", list[str]()
    settings = ServerSettings(request_log=path)
    with Server(tiny_engine("llama"), paced(), settings, on_message=reports.append) as server:
        yield LoggedServer(server, path, reports)


def send(logged: LoggedServer, model: str, request_id: str, max_tokens: int = 4, **parameters: Any) -> list[Any]:
    sent = message(model, prompt_for(logged.server, model, "Tea, please."), max_tokens, request_id, stream=True)
    put(sent, parameters)
    return stream_of(logged.server, sent)


def put(sent: Any, parameters: dict[str, Any]) -> None:
    for name, value in parameters.items():
        kind = {str: "string_param", bool: "bool_param", int: "int64_param"}[type(value)]
        setattr(sent.parameters[name], kind, value)


@pytest.mark.parametrize("model", MODELS)
def test_each_answer_is_logged_with_its_tenant_and_trace(logged: LoggedServer, model: str) -> None:
    replies = send(logged, model, f"one-{model}", tenant="team a", traceparent=TRACE, inflight_client="0.1.0")
    line = logged.line(f"one-{model}")
    assert (line["tenant"], line["traceparent"], line["client"]) == ("team a", TRACE, "0.1.0")
    assert (line["reason"], line["code"], line["output_tokens"]) == ("length", "", 4)
    last = next(reply for reply in replies if reply.finish_reason)
    assert line["input_tokens"] == last.number("num_input_tokens")
    assert 0 <= line["queue_seconds"] <= line["first_token_seconds"] <= line["total_seconds"] < SOON
    assert "Tea" not in logged.path.read_text()


def test_several_answers_are_several_lines(logged: LoggedServer) -> None:
    sent = message(ENSEMBLE, "Tea", 2, "several", num_return_sequences=3)
    put(sent, {"tenant": "team b"})
    stream_of(logged.server, sent)
    wait_until(lambda: [line["tenant"] for line in logged.lines() if line["tenant"] == "team b"][2:])
    assert [line["request_id"] for line in logged.lines() if line["tenant"] == "team b"] == ["several"] * 3


def test_cancels_and_refusals_are_logged(logged: LoggedServer) -> None:
    with GrpcConnection(logged.server.grpc_address) as connection:
        sent = message(ENSEMBLE, "Tea", ENDLESS, "left", stream=True)
        put(sent, {"tenant": "team c"})
        call = connection.send(sent)
        call.wait_for(2)
        call.cancel()
        line = logged.line("left")
    assert (line["reason"], line["tenant"]) == ("cancelled", "team c")
    send(logged, ENSEMBLE, "too long", 10 * ENDLESS, tenant="team c")
    line = logged.line("too long")
    assert (line["reason"], line["code"], line["tenant"]) == ("rejected", "prompt_too_long", "team c")
    assert line["total_seconds"] is None


@pytest.mark.parametrize("model", MODELS)
def test_what_is_no_string_is_refused_and_a_malformed_trace_ignored(logged: LoggedServer, model: str) -> None:
    (reply,) = send(logged, model, "", tenant=7)
    assert reply.error is not None
    assert "tenant is of type int; it must be a string [invalid_parameter]" in reply.error
    send(logged, model, f"trace-{model}", traceparent="nonsense")
    assert logged.line(f"trace-{model}")["traceparent"] == ""


def test_a_text_may_come_without_special_tokens(logged: LoggedServer) -> None:
    counts = []
    for name, more in {"with": {}, "without": {"add_special_tokens": False}}.items():
        send(logged, ENSEMBLE, name, **more)
        counts.append(logged.line(name)["input_tokens"])
    assert counts[0] == counts[1] + 1
    (reply,) = send(logged, ENSEMBLE, "", add_special_tokens="no")
    assert reply.error is not None
    assert "[invalid_parameter]" in reply.error


def test_they_come_through_the_generate_endpoint_as_keys_or_parameters(logged: LoggedServer) -> None:
    body = {
        "text_input": "Tea",
        "max_tokens": 2,
        "id": "http",
        "tenant": "team d",
        "parameters": {"traceparent": TRACE},
    }
    with post(logged.server.http_address, "/v2/models/ensemble/generate", body) as response:
        assert response.status == 200, response.read()
    line = logged.line("http")
    assert (line["tenant"], line["traceparent"]) == ("team d", TRACE)


def test_tokens_are_counted_by_tenant(logged: LoggedServer) -> None:
    send(logged, ENSEMBLE, "counted", 5, tenant="team e")

    def output_tokens() -> list[float]:
        counts = page_of(logged.server).family("inflight_tenant_tokens_total")
        return [value for labels, value in counts.items() if {("tenant", "team e"), ("kind", "output")} <= {*labels}]

    wait_until(lambda: output_tokens() == [5])


def test_a_client_of_another_version_is_told_of_once(logged: LoggedServer) -> None:
    for number in range(3):
        send(logged, ENSEMBLE, f"old-{number}", inflight_client="9.9.0")
    wait_until(lambda: [line for line in logged.reports if "client of inflight 9.9.0" in line])
    logged.line("old-2")
    assert sum("client of inflight 9.9.0" in line for line in logged.reports) == 1


def test_a_log_that_can_not_be_written_is_refused_before_the_start(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    settings = ServerSettings(request_log=tmp_path / "nowhere" / "log")
    with (
        raises(DeployError, "invalid_parameter", naming="--request-log"),
        Server(tiny_engine("llama"), DeploymentOptions(), settings),
    ):
        pass
