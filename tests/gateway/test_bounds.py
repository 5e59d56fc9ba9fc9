"""What one client may take: connections, time, memory, and the requests that web pages make."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from inflight_client import InflightError

from inflight.gateway import http, model_requests, server
from inflight.gateway.adapters import AdapterFile
from inflight.gateway.app import Gateway
from inflight.gateway.http import BodyMemory, DisconnectedError, Request
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.openapi import openapi
from inflight.gateway.processes import listen
from inflight.gateway.server import BoundedProtocol, Connections, GatewayServer
from inflight.gateway.servers import UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.messages import checked_messages
from inflight.openai_api.request import parse_request
from inflight.openai_api.transcription_request import AUDIO_PATHS
from tests.fixtures.browser import running_browser
from tests.fixtures.waiting import wait_until

EVIL = "https://evil.example"
BODIES = [path for path, each in openapi()["paths"].items() if "requestBody" in each.get("post", {})]


@contextmanager
def running(tmp_path: Path, connections: int = 100, **settings: Any) -> Iterator[int]:
    """Yield the port of a gateway in a thread of this process, whose server can't be reached."""
    values: dict[str, Any] = {"port": 0, "key_file": str(tmp_path / "keys.json"), "state_dir": str(tmp_path)}
    before = BoundedProtocol.connections_of_process
    BoundedProtocol.connections_of_process = Connections(connections, connections)
    with listen("127.0.0.1", 0) as sock:
        running_server = GatewayServer(Gateway(GatewaySettings(("127.0.0.1:9",), **values | settings)), sock)
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        thread = threading.Thread(target=runner.run, args=(running_server.run_here(),))
        thread.start()
        try:
            wait_until(lambda: running_server.started)
            yield sock.getsockname()[1]
        finally:
            running_server.should_exit = True
            thread.join()
            BoundedProtocol.connections_of_process = before


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a gateway that many tests share."""
    with running(tmp_path_factory.mktemp("gateway")) as number:
        yield number


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def ask(port: int, method: str, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of a request on a connection of its own; names of headers have _ for -."""
    sent = {"host": f"127.0.0.1:{port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with connect(port) as connection:
        head = f"{method} {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)
        return answer_of(connection)


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    data = b""
    while part := connection.recv(2**16):
        data += part
    head, _, content = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content) if b"application/json" in head else {}


def ended(connection: socket.socket) -> bool:
    """Read on, and return whether the other side closes the connection within the socket's timeout."""
    try:
        while connection.recv(2**16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n"


@pytest.mark.parametrize(
    "data",
    [b"", GET, GET + b"\r\n", GET + b"\r\n\r\n", POST + b"content-type: text/plain\r\n\r\n{"],
    ids=["silent", "half of the headers", "idle", "a line end", "half of a refused body"],
)
def test_a_connection_without_a_request_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    for name in ("_HEADER_SECONDS", "_IDLE_SECONDS", "_LINGER_SECONDS"):
        monkeypatch.setattr(server, name, 0.2)
    with running(tmp_path) as port, connect(port) as connection:
        for part in (data, b"\r\n" if data.endswith(b"\r\n\r\n") else b""):
            connection.sendall(part)
            time.sleep(0.05)
        assert ended(connection)


def test_a_new_connection_takes_the_place_of_an_idle_one(tmp_path: Path) -> None:
    with running(tmp_path, connections=4) as port, ExitStack() as stack:
        idle = [stack.enter_context(connect(port)) for _ in range(12)]
        assert ask(port, "GET", "/health", b"")[0] == 200
        assert ended(idle[0])


def test_without_an_idle_connection_a_new_one_is_refused_in_json(tmp_path: Path) -> None:
    with running(tmp_path, connections=1) as port, connect(port) as working:
        working.sendall(POST + b"\r\n{")
        wait_until(lambda: not BoundedProtocol.connections_of_process._idle)
        with connect(port) as refused:
            status, body = answer_of(refused)
        assert (status, body["error"]["code"]) == (503, "server_overloaded")


def test_an_address_has_its_own_limit_but_not_this_machine() -> None:
    connections = Connections(100, 2)
    assert [connections.admit("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert connections.admit("10.0.0.2")
    assert all(connections.admit("127.0.0.1") for _ in range(5))


def test_what_is_no_http_is_refused_in_json(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\ncontent-length: x\r\n\r\n")
        status, body = answer_of(connection)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")


def request(
    parts: list[bytes], memory: BodyMemory | None = None, pause: float = 0, aborted: Any = None, **headers: str
) -> Request:
    """A request whose body comes in these parts; with `aborted`, its client reads nothing."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        if aborted is not None:
            await asyncio.Event().wait()

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"method": "POST", "path": "/", "headers": raw, "state": {"abort": lambda: aborted.append(True)}}
    return Request(scope, receive, send, "id", 1000, memory or BodyMemory(10_000))


def refusal(sent: Request) -> ApiError:
    with pytest.raises(ApiError) as refused:
        asyncio.run(sent.body())
    return refused.value


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "identity", ""])
def test_a_compressed_body_is_read(coding: str) -> None:
    raw = b'{"model": "tea"}'
    sent = gzip.compress(raw) if "gzip" in coding else zlib.compress(raw) if coding == "deflate" else raw
    assert asyncio.run(request([sent[:9], sent[9:]], content_encoding=coding).body()) == raw


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [
        (gzip.compress(b"x" * 10**6), "gzip", 413),
        (b"no gzip", "gzip", 400),
        (b"{}", "br", 415),
        (b"{}", "zstd", 415),
        (b"x" * 1001, "", 413),
    ],
)
def test_a_body_that_can_t_be_decoded_is_refused(body: bytes, coding: str, status: int) -> None:
    refused = refusal(request([body], content_encoding=coding))
    assert refused.status == status
    assert ("accept-encoding" in refused.headers) == (status == 415)


def test_all_bodies_together_have_a_limit_and_give_it_back() -> None:
    memory = BodyMemory(1500)
    first = request([b"x" * 1000], memory)
    asyncio.run(first.body())
    assert refusal(request([b"x" * 1000], memory)).status == 503
    first.close()
    asyncio.run(request([b"x" * 1000], memory).body())


def test_a_body_of_a_byte_now_and_then_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_SILENT_SECONDS", 0.2)
    assert refusal(request([b"x"] * 500, pause=0.05)).status == 408


def test_a_client_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_UNREAD_SECONDS", 0.05)
    aborted: list[bool] = []
    with pytest.raises(DisconnectedError):
        asyncio.run(request([], aborted=aborted).respond(http.Response(b"x")))
    assert aborted == [True]


FOREIGN: list[dict[str, str]] = [
    {"host": "evil.example:8080"},
    *({"origin": origin} for origin in (EVIL, "null", "http://localhost:3000")),
    *({"sec_fetch_site": site} for site in ("cross-site", "same-site")),
]
ROUTES: list[tuple[str, str, dict[str, str]]] = [
    *(("GET", path, {}) for path in ("/v1/models", "/v1/files", "/metrics")),
    *(("POST", path, {}) for path in ("/v1/completions", "/v1/batches", "/tokenize")),
    ("POST", "/v1/chat/completions", {"content_type": "text/plain"}),
    ("POST", "/v1/files", {"content_type": "multipart/form-data; boundary=x"}),
    ("DELETE", "/v1/files/file-1", {}),
]


def test_pages_of_other_origins_reach_nothing(port: int) -> None:
    for method, path, headers in ROUTES:
        for foreign in FOREIGN:
            status, body = ask(port, method, path, b"{}", **headers, **foreign)
            assert (status, body["error"]["code"]) == (403, "permission_denied"), (path, foreign)
        own: dict[str, str]
        for own in ({}, {"host": "localhost"}, {"host": "[::1]:80"}, {"origin": f"http://127.0.0.1:{port}"}):
            assert ask(port, method, path, b"{}", **headers, **own)[0] != 403, (path, own)
    assert ask(port, "GET", "/health", b"", **FOREIGN[0])[0] == 200
    assert ask(port, "GET", "/docs", b"", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200


def test_a_named_origin_may_call_and_still_not_by_another_host(tmp_path: Path) -> None:
    with running(tmp_path, cors_origins=(EVIL,)) as port:
        assert ask(port, "GET", "/v1/models", b"", origin=EVIL, sec_fetch_site="cross-site")[0] == 200
        assert ask(port, "GET", "/v1/models", b"", origin=EVIL, host="evil.example")[0] == 403


def test_with_keys_the_key_decides(tmp_path: Path) -> None:
    token = add_key(tmp_path / "keys.json", ApiKey.new("app"))
    with running(tmp_path) as port:
        assert ask(port, "GET", "/v1/models", b"", host="ai.example")[0] == 401
        assert ask(port, "GET", "/v1/models", b"", host="ai.example", authorization=f"Bearer {token}")[0] == 200


def test_long_names_above_many_values_cost_no_more_than_their_sum() -> None:
    assert checked_messages(
        [{"role": "user", "content": "x", "extra": {"k" * 4_000_000: [1] * 50_000}}]
    )  # not their product


@pytest.mark.parametrize("path", sorted({*BODIES} - {"/v1/files", *AUDIO_PATHS.values()}))
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(port: int, path: str) -> None:
    for body in (b"[" + b"[]," * 2**20 + b"[]]", b'{"a":[' + b'"",' * 5 * 2**20 + b'""]}'):
        status, answer = ask(port, "POST", path, body, content_type="application/json")
        assert (status, answer["error"]["code"]) == (413, "request_too_large")


def test_commas_in_texts_are_no_values(port: int) -> None:
    body = json.dumps({"model": "tea", "prompt": 'one, "two", [three], ' * 60_000}).encode()
    assert ask(port, "POST", "/v1/completions", body, content_type="application/json")[0] == 503  # no server


def test_the_watch_of_a_server_survives_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [PermissionError("no"), PermissionError("no"), InflightError("gone", "server_gone")]

    async def health(**options: Any) -> Any:
        raise failures.pop(0) if failures else asyncio.CancelledError  # which ends the watch

    async def scenario() -> None:
        watched = UpstreamServer("127.0.0.1:9", GatewaySettings(()), AdapterFile(tmp_path / "adapters.json"))
        monkeypatch.setattr(watched.client, "health", health)
        monkeypatch.setattr("inflight.gateway.servers._POLL_SECONDS", 0.01)
        with pytest.raises(asyncio.CancelledError):
            await watched.watch()
        await watched.client.close()

    asyncio.run(scenario())
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_the_size_of_a_request_is_known_from_its_parts() -> None:
    body = {"model": "tea", "messages": [{"role": "user", "content": "x" * 400}]}
    parsed = parse_request(body, True, model_requests._DEFAULTS)
    assert (parsed.characters >= 400, 100 <= parsed.estimated_tokens <= 110) == (True, True)


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completions/chat/completions"]
)
def test_a_wrong_base_url_is_told(port: int, path: str) -> None:
    status, body = ask(port, "POST", path, b"{}")
    assert (status, "/v1/chat/completions?" in body["error"]["message"]) == (404, True)


FIELDS = {
    "file": b'name="file"; filename="rows.jsonl"\r\n\r\n{}\n',
    "purpose": b'name="purpose"\r\n\r\nbatch',
    "anchor": b'name="expires_after[anchor]"\r\n\r\ncreated_at',
    "seconds": b'name="expires_after[seconds]"\r\n\r\n3600',
}


def upload(port: int, *fields: bytes) -> tuple[int, dict[str, Any]]:
    parts = b"".join(b"--x\r\ncontent-disposition: form-data; " + field + b"\r\n" for field in fields)
    return ask(port, "POST", "/v1/files", parts + b"--x--\r\n", content_type="multipart/form-data; boundary=x")


def test_the_fields_of_a_form_have_no_order(port: int) -> None:
    for order in itertools.permutations(FIELDS):
        status, body = upload(port, *(FIELDS[name] for name in order))
        assert (status, body["expires_at"] - body["created_at"]) == (200, 3600), order
    for left_out in ("file", "purpose"):
        status, body = upload(port, *(field for name, field in FIELDS.items() if name != left_out))
        assert (status, body["error"]["param"]) == (400, left_out)
    status, body = upload(port, FIELDS["file"], b'name="purpose"\r\n\r\nparty')
    assert (status, body["error"]["param"]) == (400, "purpose")


def test_uploads_count_as_requests(tmp_path: Path) -> None:
    token = add_key(tmp_path / "keys.json", ApiKey.new("app", quotas=Quotas(requests_per_minute=1)))
    with running(tmp_path) as port:
        form = {"content_type": "multipart/form-data; boundary=x", "authorization": f"Bearer {token}"}
        assert [ask(port, "POST", "/v1/files", b"--x--", **form)[0] for _ in range(2)] == [400, 429]


ATTACK = """
const tried = (path, options) => fetch("http://127.0.0.1:%d" + path, options)
  .then(async answer => answer.type + " " + await answer.text()).catch(() => "refused");
const form = new FormData();
form.append("purpose", "batch"); form.append("file", new Blob(["{}"]), "rows.jsonl");
const body = new Blob(['{"model": "tea", "prompt": "hi"}']), method = "POST", mode = "no-cors";
Promise.all([
  tried("/v1/models"), tried("/v1/models", { mode }),
  tried("/v1/completions", { method, body, mode }),
  tried("/v1/completions", { method, body, headers: { "content-type": "application/json" } }),
  tried("/v1/files", { method, body: form, mode }),
]).then(all => { document.title = JSON.stringify(all); });
"""


def test_a_page_of_another_origin_in_a_browser_reads_and_starts_nothing(tmp_path: Path) -> None:
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with running(tmp_path) as port, running_browser(rules) as foreign:
        page = foreign.new_page()
        shown = "<title>waits</title>"
        page.route("http://evil.example/*", lambda route: route.fulfill(body=shown, content_type="text/html"))
        page.goto("http://evil.example/page")
        page.add_script_tag(content=ATTACK % port)
        page.wait_for_function("document.title !== 'waits'")
        assert set(json.loads(page.title())) <= {"refused", "opaque "}
        assert ask(port, "GET", "/v1/files", b"")[1]["data"] == []
        # A name that first led to the page's server, and now to this machine: the browser sends it as the host.
        rebound = foreign.new_page().goto(f"http://evil.example:{port}/v1/files")
        assert (rebound and rebound.status) == 403
