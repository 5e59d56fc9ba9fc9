"""Each generation request is a span at a collector, with the engine's times below it, and without its text."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from inflight.deploy.server.server import Server, ServerSettings
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.gateway import running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, complete, post
from tests.fixtures.server import paced
from tests.fixtures.waiting import wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "marmalade"
FLUSHED = 60.0


class Collector:
    """An OTLP collector that keeps what it gets; it answers only while `answering`."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answering = threading.Event()
        self.answering.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.headers.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                collector.answering.wait()
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def trace(self, request_id: str) -> tuple[Span, list[Span]]:
        """The span of a request, once it is there, and those below it."""

        def found() -> list[Span]:
            return [each for each in self.spans if attributes(each).get("inflight.request_id") == request_id]

        (root,) = wait_until(found)
        return root, [each for each in self.spans if each.parent_span_id == root.span_id]


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: plain(each.value) for each in span.attributes}


def plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="module")
def _quick_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield


Traced = tuple[GatewayProcesses, Collector]


@pytest.fixture(scope="module")
def traced(hurried_server: Server) -> Iterator[Traced]:
    """A gateway and its collector, which tests share: they look for spans by the ids of their requests."""
    shared = Collector()
    with running_gateway(hurried_server, otlp_endpoint=shared.url) as gateway:
        yield gateway, shared
    shared.close()


@pytest.fixture(scope="module")
def traced_encoders(scripted_encoders: EncoderServer) -> Iterator[Traced]:
    """As `traced`, in front of models that embed, rerank and classify."""
    shared = Collector()
    with running_gateway(scripted_encoders.grpc_address, otlp_endpoint=shared.url) as gateway:
        yield gateway, shared
    shared.close()


def sent(traced: Traced, path: str, body: Any, parent: str = "") -> tuple[Answer, Span, list[Span]]:
    """Send a request; return its answer, its span and the spans below."""
    gateway, collector = traced
    request_id = uuid.uuid4().hex
    headers = {"x-request-id": request_id} | ({"traceparent": parent} if parent else {})
    answer = post(gateway, path, {"model": MODEL, **body}, headers)
    return answer, *collector.trace(request_id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_request_is_a_span_below_the_callers(traced: Traced, path: str, stream: bool) -> None:
    text: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 8},
        "/v1/completions": {"prompt": SECRET, "max_tokens": 8},
        "/v1/responses": {"input": SECRET, "max_output_tokens": 8, "store": False},
    }
    answer, root, below = sent(traced, path, {"stream": stream, **text[path]}, f"00-{TRACE}-{PARENT}-01")
    assert answer.status == 200
    assert (root.name, root.kind) == (f"POST {path}", Span.SPAN_KIND_SERVER)
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    found = attributes(root)
    assert found["gen_ai.operation.name"] == ("text_completion" if path == "/v1/completions" else "chat")
    assert (found["gen_ai.request.model"], found["gen_ai.request.max_tokens"]) == (MODEL, 8)
    assert found["http.response.status_code"] == 200
    assert (found["gen_ai.response.finish_reasons"], found["gen_ai.usage.output_tokens"]) == (["length"], 8)
    assert found["gen_ai.usage.input_tokens"] > 0
    assert "error.type" not in found
    queue, prefill, decode = sorted(below, key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    length = decode.end_time_unix_nano - queue.start_time_unix_nano
    assert 0 < length <= root.end_time_unix_nano - root.start_time_unix_nano
    assert SECRET not in str(traced[1].requests)


@pytest.mark.parametrize(
    ("path", "operation"), [("/v1/embeddings", "embeddings"), ("/v2/rerank", "rerank"), ("/classify", "classify")]
)
def test_a_request_for_an_encoder_is_a_span_without_its_texts(
    traced_encoders: Traced, path: str, operation: str
) -> None:
    body = {"query": SECRET, "documents": [SECRET]} if operation == "rerank" else {"input": SECRET}
    gateway, collector = traced_encoders
    assert post(gateway, path, body, {"x-request-id": operation}).status == 200
    root, below = collector.trace(operation)
    found = attributes(root)
    assert (found["gen_ai.operation.name"], found["gen_ai.usage.input_tokens"]) == (operation, 1)
    assert "gen_ai.usage.output_tokens" not in found
    assert not below
    assert SECRET not in str(collector.requests)


def test_each_choice_has_its_own_times(traced: Traced) -> None:
    answer, root, below = sent(traced, "/v1/completions", {"prompt": "tea", "max_tokens": 8, "n": 2})
    assert answer.status == 200
    assert attributes(root)["gen_ai.response.finish_reasons"] == ["length", "length"]
    choices = [attributes(span)["inflight.choice"] for span in below if span.name == "decode"]
    assert (sorted(choices), len(below)) == ([0, 1], 6)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"prompt": "tea", "max_tokens": -1}, 400, "invalid_value"),
        ({"prompt": "tea", "model": "absent"}, 404, "model_not_found"),
    ],
)
def test_a_refused_request_is_a_span_with_its_code(
    traced: Traced, body: dict[str, Any], status: int, error: str
) -> None:
    answer, root, below = sent(traced, "/v1/completions", body)
    assert (answer.status, answer.error["code"]) == (status, error)
    found = attributes(root)
    assert (found["http.response.status_code"], found["error.type"], below) == (status, error, [])


def test_a_caller_that_samples_out_its_trace_gets_no_spans(traced: Traced) -> None:
    gateway, collector = traced
    body = {"prompt": "tea", "max_tokens": 8}
    headers = {"traceparent": f"00-{'5' * 32}-{PARENT}-00", "x-request-id": "out"}
    assert post(gateway, "/v1/completions", {"model": MODEL, **body}, headers).status == 200
    _, root, below = sent(traced, "/v1/completions", body)
    assert len([root, *below]) == 4
    assert "5" * 32 not in {span.trace_id.hex() for span in collector.spans}


def test_spans_are_sent_before_the_end(
    hurried_server: Server, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=abc")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "tea-house")
    with running_gateway(hurried_server, otlp_endpoint=collector.url, workers=2) as gateway:
        assert complete(gateway).status == 200
        gateway.stop(FLUSHED)
    assert len(collector.spans) == 4
    assert [(each["path"], each["x-token"]) for each in collector.headers] == [("/v1/traces", "abc")]
    resource = {each.key: plain(each.value) for each in collector.requests[0].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "tea-house"


def absent(stack: ExitStack) -> str:
    sock = stack.enter_context(socket.socket())
    sock.bind(("127.0.0.1", 0))  # bound, so that nothing else listens there
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


def silent(stack: ExitStack) -> str:
    collector = Collector()
    stack.callback(collector.close)
    collector.answering.clear()
    return collector.url


@pytest.mark.parametrize("kind", [absent, silent])
def test_a_failed_collector_fails_and_delays_no_request(
    hurried_server: Server, monkeypatch: pytest.MonkeyPatch, kind: Callable[[ExitStack], str]
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    # An export that a request waits for would take longer than the request may.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    with ExitStack() as stack:
        url = kind(stack)
        with running_gateway(hurried_server, otlp_endpoint=url) as gateway:
            assert {complete(gateway).status for _ in range(20)} == {200}
            gateway.stop(FLUSHED)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://localhost", "http://", "http://localhost:a"])
def test_an_endpoint_must_be_a_url(endpoint: str) -> None:
    with raises(InflightError, "invalid_parameter", naming=endpoint):
        GatewaySettings((), otlp_endpoint=endpoint).check()


def test_the_standard_variable_names_the_collector(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://tea")
    done = CommandRunner(monkeypatch, capsys, "gateway")("--server", "127.0.0.1:1", "--port", "0")
    assert done.code == 1
    assert "ftp://tea" in done.err


def test_without_the_extra_the_option_is_refused() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from inflight.gateway.settings import GatewaySettings\n"
        "try: GatewaySettings((), otlp_endpoint='http://localhost:4318').check()\n"
        "except Exception as error: print(error.code, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("package_missing ")
    assert "pip install '.[otlp]'" in done.stdout


@pytest.fixture(scope="module")
def logged(tiny_engine: TinyEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    with Server(tiny_engine("llama"), paced(), ServerSettings(request_log=path)) as server:
        yield server, path


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def test_the_engine_gets_the_trace_of_the_gateways_span(logged: tuple[Server, Path], collector: Collector) -> None:
    server, path = logged
    with running_gateway(server, otlp_endpoint=collector.url) as gateway:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "one"}
        body = {"model": MODEL, "prompt": "tea", "max_tokens": 8}
        assert post(gateway, "/v1/completions", body, headers).status == 200
        root, below = collector.trace("one")
    (told,) = wait_until(lambda: [line for line in lines(path) if line["request_id"].startswith("one-")])
    assert told["traceparent"] == f"00-{TRACE}-{root.span_id.hex()}-01"
    lengths = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in below}
    assert lengths["queue"] == pytest.approx(told["queue_seconds"], abs=1e-5)
    assert lengths["queue"] + lengths["prefill"] == pytest.approx(told["first_token_seconds"], abs=1e-5)
    assert sum(lengths.values()) == pytest.approx(told["total_seconds"], abs=1e-5)
