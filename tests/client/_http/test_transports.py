"""Both transports against a server that does to them what networks and servers do."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from inflight_client._sync.http_transport import HttpTransport
from inflight_client.address import Address
from inflight_client.deadline import NEVER, Deadline
from inflight_client.errors import DeadlineExceeded, InflightError

from tests.client._http.scripted_server import (
    END,
    SOON,
    STREAM_HEAD,
    HttpRequestSeen,
    Peer,
    Script,
    answer,
    chunk,
    event,
    scripted,
    whole,
)
from tests.client._http.transports import request
from tests.client.support.leak_checks import nothing_left
from tests.client.support.transports import TransportCaller, TransportVariant, both_http
from tests.fixtures.errors import raises

_STREAM = "text/event-stream"
_SETTINGS = b"\0\0\x06\x04\0\0\0\0\0\0\x05\0@\0\0"  # what Triton's gRPC port says first, to whomever
_WITHOUT_END = b'HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"text_output":"a"}\n\n'


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    with nothing_left():
        yield


def _told(peer: Peer, asked: HttpRequestSeen) -> None:
    """An answer that repeats the request's id."""
    answer(peer, asked, "of ", asked.id)


def _sending(*pieces: bytes) -> Script:
    """Sends that, whatever is asked, and hangs up."""

    def script(peer: Peer, asked: HttpRequestSeen) -> None:
        peer.send(*pieces)
        peer.hang_up()

    return script


def _end(caller: TransportCaller, name: str) -> str:
    """How a request of that id ends: with the right answer, or with a code."""
    try:
        return "right" if caller.texts(request(name)) == ["of ", name] else "wrong"
    except InflightError as error:
        return error.code


def _code(way: TransportVariant, script: Script, whole: Deadline = NEVER, first: Deadline = NEVER) -> str:
    """The code that a request to that server fails with."""
    with scripted(script) as server, way.to(server.url) as caller, pytest.raises(InflightError) as caught:
        caller.texts(request(), whole, first)
    return caught.value.code


@both_http
class TestAnswers:
    def test_a_request_goes_out_as_the_generate_extension_has_it(self, way: TransportVariant) -> None:
        headers = {"authorization": "Bearer a", "x-two": "client"}
        with scripted(_told) as server, way.to(f"{server.url}/llm/", headers) as caller:
            assert caller.texts(replace(request("r-5"), headers={"x-two": "call"})) == ["of ", "r-5"]
        (got,) = server.requests
        assert (got.method, got.path) == ("POST", "/llm/v2/models/ensemble/generate_stream")
        assert got.json == {"text_input": "tea", "max_tokens": 3, "stream": True, "id": "r-5"}
        sent = {name: got.headers[name] for name in ("host", "authorization", "x-two")}
        assert sent == {"host": server.address, "authorization": "Bearer a", "x-two": "call"}

    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_an_answer_may_come_in_any_pieces(self, way: TransportVariant, size: int) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            body = b": hello\r\n\r\ndata: {\r\ndata: " + json.dumps({"text_output": "é☕"}).encode()[1:] + b"\r\n\r\n"
            pieces = [body[start : start + size] for start in range(0, len(body), size)]
            peer.send(STREAM_HEAD, *map(chunk, pieces), END)

        with scripted(script) as server, way.to(server.url) as caller:
            assert caller.texts(request()) == ["é☕"]

    @pytest.mark.parametrize(
        ("status", "kind", "body", "code"),
        [
            ("400 Bad Request", _STREAM, b'data: {"error":"n is 0 [invalid_parameter]"}\n\n', "invalid_parameter"),
            ("400 Bad Request", "application/json", b'{"error":"[request id: 5] no input \'x\'"}', "invalid_request"),
            ("400 Bad Request", "text/plain", b"", "invalid_request"),
            ("401 Unauthorized", "text/html", b"<html>", "permission_denied"),
            ("403 Forbidden", "application/json", b'{"error":"This API is restricted"}', "permission_denied"),
            ("404 Not Found", "application/json", b'{"error":"unknown model: \'x\' is not found"}', "model_not_found"),
            ("404 Not Found", "text/html", b"<html>", "unsupported_deployment"),
            ("101 Switching Protocols", "text/plain", b"", "answer_damaged"),
            ("204 No Content", "text/plain", b"", "unsupported_deployment"),
            ("301 Moved Permanently", "text/html", b"", "invalid_parameter"),
            ("413 Content Too Large", "text/html", b"", "prompt_too_long"),
            ("429 Too Many Requests", "text/html", b"", "overloaded"),
            ("500 Oops", "application/json", b'{"error":"Stub process \'a\' is not healthy."}', "model_not_ready"),
            ("500 Oops", "text/plain", b"\xff", "server_gone"),
            ("502 Bad Gateway", "text/html", b"<html>", "server_gone"),
            ("503 Unavailable", "text/html", b"", "server_gone"),
            ("503 Unavailable", "application/json", b'{"error":"Exceeds maximum queue size"}', "overloaded"),
            ("503 Unavailable", "application/json", b'{"error":"who knows"}', "model_not_ready"),
            ("504 Gateway Timeout", "text/html", b"", "deadline_exceeded"),
        ],
    )
    def test_errors_by_status_and_words(
        self, way: TransportVariant, status: str, kind: str, body: bytes, code: str
    ) -> None:
        assert _code(way, _sending(whole(status, body, kind))) == code

    def test_what_is_at_hand_after_the_deadline_is_late_too(self, way: TransportVariant) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            said = (json.dumps({"id": asked.id, "text_output": text}).encode() for text in ("tea", " and"))
            peer.send(STREAM_HEAD + chunk(b"".join(b"data: " + each + b"\n\n" for each in said)) + END)

        with scripted(script) as server, way.to(server.url) as caller:
            for seconds in (0.5, 2, 8):  # a busy machine gets more time
                deadline = Deadline(seconds)
                responses = caller.responses(request(), deadline)
                with contextlib.suppress(DeadlineExceeded):
                    assert next(responses).text("text_output") == "tea"
                    break
            time.sleep(deadline.left() or 0.0)
            with pytest.raises(DeadlineExceeded):
                next(responses)

    def test_an_error_may_come_in_the_middle(self, way: TransportVariant) -> None:
        got: list[str | None] = []
        script = _sending(STREAM_HEAD, event(id="r-1", text_output="a"), event(error="it died [engine_died]"), END)
        with scripted(script) as server, way.to(server.url) as caller:
            with raises(InflightError, "engine_died") as caught:
                got.extend(response.text("text_output") for response in caller.responses(request()))
            assert str(caught.value) == "it died"
        assert got == ["a"]


@both_http
class TestDamage:
    @pytest.mark.parametrize(
        ("sent", "codes"),
        [
            pytest.param(b"", {"server_gone"}, id="nothing"),
            pytest.param(b"HTTP/1.1 200", {"server_gone"}, id="cut in the head"),
            pytest.param(STREAM_HEAD + event(text_output="a")[:-9], {"server_gone"}, id="cut in a chunk"),
            pytest.param(STREAM_HEAD + event(text_output="a"), {"server_gone"}, id="cut between chunks"),
            pytest.param(STREAM_HEAD + chunk(b'data: {"te') + END, {"answer_damaged"}, id="an event without end"),
            pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", {"answer_damaged"}, id="no HTTP"),
            pytest.param(b"\x15\x03\x01\x00\x02\x02F" * 99, {"permission_denied"}, id="TLS"),
            pytest.param(_SETTINGS, {"unsupported_deployment"}, id="HTTP/2"),
            pytest.param(_WITHOUT_END, {"unsupported_deployment"}, id="an end that nobody tells"),
            pytest.param(b"x" * 200_000, {"answer_damaged"}, id="a head without end"),
            pytest.param(STREAM_HEAD + b"zz\r\n", {"answer_damaged"}, id="no chunk"),
            pytest.param(STREAM_HEAD + chunk(b"data: {]\n\n") + END, {"answer_damaged"}, id="no JSON"),
            pytest.param(
                STREAM_HEAD + chunk(b'data: {"text_output":"\xff"}\n\n') + END, {"answer_damaged"}, id="no UTF-8"
            ),
            pytest.param(STREAM_HEAD + event(id="r-0", text_output="b") + END, {"answer_damaged"}, id="another's"),
            pytest.param(
                whole("200 OK", b"<html>Please log in", "text/html"), {"unsupported_deployment"}, id="a portal"
            ),
            pytest.param(
                STREAM_HEAD.replace(b"200 OK", b"200 OK\r\nContent-Length: 5") + event(text_output="a"),
                {"answer_damaged", "server_gone"},
                id="two lengths",
            ),
        ],
    )
    def test_what_is_broken_is_an_error_and_never_other_text(
        self, way: TransportVariant, sent: bytes, codes: set[str]
    ) -> None:
        got: list[str | None] = []
        with scripted(_sending(sent)) as server, way.to(server.url) as caller, pytest.raises(InflightError) as caught:
            got.extend(response.text("text_output") for response in caller.responses(request()))
        assert caught.value.code in codes
        assert got in ([], ["a"])

    @pytest.mark.parametrize("method", ["server", "index", "metadata", "config"])
    @pytest.mark.parametrize("body", [b"", b"[5]", b'{"name": "another"}', b'{"name": 5, "inputs": 5}', b"\xff", b"{"])
    def test_metadata_that_is_none_is_damage(self, way: TransportVariant, method: str, body: bytes) -> None:
        with scripted(lambda peer, asked: peer.send(whole("200 OK", body))) as server, way.to(server.url) as caller:
            arguments = ["ensemble"] if method in ("metadata", "config") else []
            with pytest.raises(InflightError) as caught:
                caller.ask(method, *arguments, NEVER)
        assert caught.value.code == "answer_damaged"


@both_http
class TestConnections:
    def test_calls_one_after_another_share_one(self, way: TransportVariant) -> None:
        with scripted(_told) as server, way.to(server.url) as caller:
            for number in range(5):
                assert caller.texts(request(f"r-{number}")) == ["of ", f"r-{number}"]
        assert server.connections == 1

    def test_one_that_the_server_closed_meanwhile_is_not_used(self, way: TransportVariant) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            _told(peer, asked)
            peer.hang_up()

        with scripted(script) as server, way.to(server.url) as caller:
            for number in range(3):
                assert caller.texts(request(f"r-{number}")) == ["of ", f"r-{number}"]
                assert server.closed_one.acquire(timeout=SOON)
        assert server.connections == 3

    def test_an_answer_that_comes_twice_is_nobody_elses(self, way: TransportVariant) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            _told(peer, asked)
            _told(peer, asked)

        with scripted(script) as server, way.to(server.url) as caller:
            ends = [_end(caller, f"r-{number}") for number in range(6)]
        assert set(ends) <= {"right", "answer_damaged"}
        assert "right" in ends

    def test_where_answers_have_no_id_none_is_used_twice(self, way: TransportVariant) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            peer.send(STREAM_HEAD, event(text_output=asked.id), END)

        with scripted(script) as server, way.to(server.url) as caller:
            assert [caller.texts(request(name)) for name in ("a", "b")] == [["a"], ["b"]]
        assert server.connections == 2

    def test_questions_have_one_each(self, way: TransportVariant) -> None:
        with scripted(lambda peer, asked: peer.send(whole("200 OK", b""))) as server, way.to(server.url) as caller:
            assert caller.ask("live", NEVER)
            assert caller.ask("ready", NEVER)
        assert server.connections == 2
        assert [asked.headers["connection"] for asked in server.requests] == ["close", "close"]

    def test_leaving_an_answer_early_closes_its_connection(self, way: TransportVariant) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            peer.send(STREAM_HEAD, event(id=asked.id, text_output="a"))
            peer.wait_until_gone()

        with scripted(script) as server, way.to(server.url) as caller:
            responses = caller.responses(request())
            assert next(responses).text("text_output") == "a"
            responses.close()
            assert server.hung_up.acquire(timeout=SOON)

    def test_nobody_listens(self, way: TransportVariant) -> None:
        with scripted(_told) as server:
            url = server.url
        with way.to(url) as caller, raises(InflightError, "server_unreachable", naming=url):
            caller.texts(request())

    def test_a_closed_one_says_so(self, way: TransportVariant) -> None:
        with scripted(_told) as server, way.to(server.url) as caller:
            assert caller.texts(request()) == ["of ", "r-1"]
            left = caller.responses(request())
            caller.ask("close")
            caller.ask("close")
            for work in (lambda: caller.texts(request()), lambda: caller.ask("live", NEVER), lambda: next(left)):
                with raises(InflightError, "client_closed"):
                    work()


class TestThreads:
    def test_sixty_four_streams_run_at_once(self) -> None:
        all_there = threading.Barrier(64)

        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            all_there.wait(SOON)
            _told(peer, asked)

        with (
            scripted(script) as server,
            TransportVariant("http", False).to(server.url) as caller,
            ThreadPoolExecutor(64) as threads,
        ):
            texts = threads.map(lambda number: "".join(map(str, caller.texts(request(f"r-{number}")))), range(64))
            assert list(texts) == [f"of r-{number}" for number in range(64)]

    @pytest.mark.parametrize(("end", "code"), [("close", "cancelled"), ("transport", "client_closed")])
    def test_another_thread_may_end_a_call(self, end: str, code: str) -> None:
        began = threading.Event()

        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            began.set()
            peer.wait_until_gone()

        with scripted(script) as server, ThreadPoolExecutor(1) as threads:
            transport = HttpTransport(Address.parse(server.url), {}, None)
            responses = transport.infer(request(), NEVER, NEVER)
            waiting = threads.submit(next, responses)
            assert began.wait(SOON)
            responses.close() if end == "close" else transport.close()
            error = waiting.exception(SOON)
            assert isinstance(error, InflightError)
            assert error.code == code
            assert server.hung_up.acquire(timeout=SOON)
            transport.close()
