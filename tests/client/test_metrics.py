from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

import pytest
from inflight_client._async.http_transport import async_fetch_metrics
from inflight_client._sync.http_transport import fetch_metrics
from inflight_client.address import Tls
from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.metrics import Metrics
from inflight_client.settings import ClientSettings

from inflight.deploy.server.server import Server
from tests.client._http.scripted_server import HttpRequestSeen, Peer, Script, scripted, whole
from tests.client.support.leak_checks import nothing_left, run
from tests.fixtures.certificates import Certificates
from tests.fixtures.errors import raises
from tests.fixtures.host_names import resolve_examples


class Fetch(Protocol):
    def __call__(self, url: str, deadline: Deadline, server: ClientSettings | None = None) -> Metrics: ...


def _async_fetch(url: str, deadline: Deadline, server: ClientSettings | None = None) -> Metrics:
    page: Metrics = run(lambda: async_fetch_metrics(url, deadline, server))
    return page


both_ways = pytest.mark.parametrize("fetch", [fetch_metrics, _async_fetch], ids=["threads", "asyncio"])


class TestPages:
    def test_values_go_by_the_names_and_labels_of_the_page(self) -> None:
        page = Metrics.parse(
            "# HELP requests How many\n# TYPE requests counter\n"
            'requests{model="a",version="1"} 7\nrequests{model="b\\"\\n",version="1"} 1e3\n'
            "# TYPE seconds_total counter\nseconds_total 0.5\n"
            '# TYPE wait histogram\nwait_bucket{le="1"} 2\nwait_bucket{le="+Inf"} 3\nwait_sum 4.5\nwait_count 3\n'
        )
        assert page.value("requests", model="a", version="1") == 7
        assert page.value("requests", model='b"\n', version="1") == 1000
        assert page.value("seconds_total") == 0.5
        assert (page.value("wait_bucket", le="+Inf"), page.value("wait_count")) == (3, 3)
        assert (page.value("requests"), page.value("requests", model="a"), page.value("none")) == (None, None, None)
        assert page.families["requests"].type == "counter"

    @pytest.mark.parametrize("text", ["<html>", "a{b} 1", "a{b=c} 1", "a 5 six", "a", '{"a": 5}', "a{" * 5000])
    def test_what_is_no_page_says_so(self, text: str) -> None:
        with raises(InflightError, "answer_damaged", naming="metrics page"):
            Metrics.parse(text)


@both_ways
class TestFetching:
    def test_the_real_one(self, fetch: Fetch, server: Server) -> None:
        with nothing_left():
            page = fetch(f"http://{server.metrics_address}/metrics", Deadline(60))
        found = page.value("nv_inference_request_success", model="ensemble", version="1")
        assert found is not None
        assert found >= 0

    def test_what_is_asked(self, fetch: Fetch) -> None:
        with scripted(lambda peer, asked: peer.send(whole("200 OK", b"a 5\n", "text/plain"))) as server:
            assert fetch(f"{server.url}/llm/metrics", Deadline(60)).value("a") == 5
            assert fetch(server.url, Deadline(60)).value("a") == 5
        assert [asked.path for asked in server.requests] == ["/llm/metrics", "/"]

    @pytest.mark.parametrize(
        ("status", "body", "code"),
        [("404 Not Found", b"no", "unsupported_deployment"), ("200 OK", b"\xff", "answer_damaged")],
    )
    def test_errors(self, fetch: Fetch, status: str, body: bytes, code: str) -> None:
        script: Script = lambda peer, asked: peer.send(whole(status, body))  # noqa: E731
        with scripted(script) as server, raises(InflightError, code):
            fetch(f"{server.url}/metrics", Deadline(60))

    def test_a_page_without_end_is_given_up(self, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("inflight_client._http.channel.MAX_BODY_BYTES", 1_000_000)

        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
            while not peer.over:
                peer.send(b"a 5\n" * 10_000)

        with scripted(script) as server, raises(InflightError, "answer_damaged", naming="1000000"):
            fetch(f"{server.url}/metrics", Deadline(60))

    def test_a_page_that_trickles_is_given_up(self, fetch: Fetch) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            peer.trickle(whole("200 OK", b"a 5\n" * 9999))

        with scripted(script) as server, nothing_left(), raises(InflightError, "deadline_exceeded", naming="page"):
            fetch(f"{server.url}/metrics", Deadline(0.1, "the page"))

    @pytest.mark.parametrize(
        ("server", "goes"),
        [
            ("http://127.0.0.1:1", True),
            ("127.0.0.1:1", True),
            ("http://localhost:1", False),  # another name may be another's
            ("grpcs://127.0.0.1:1", False),  # what goes there over TLS does not go here without
            ("https://127.0.0.1:1", False),
        ],
    )
    def test_a_clients_headers_go_to_its_own_server_alone(self, fetch: Fetch, server: str, goes: bool) -> None:
        settings = ClientSettings.from_arguments(server, None, {"authorization": "Bearer a"}, None, None, None, None)
        with scripted(lambda peer, asked: peer.send(whole("200 OK", b"a 5\n", "text/plain"))) as pages:
            fetch(f"{pages.url}/metrics", Deadline(60), settings)
        assert [asked.headers.get("authorization") for asked in pages.requests] == ["Bearer a" if goes else None]

    def test_certificates_go_with_them(self, fetch: Fetch, certificates: Certificates) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server.certificate, certificates.server.key)
        settings = ClientSettings.from_arguments(
            "grpcs://127.0.0.1:1", None, {"x-key": "k"}, Tls(ca=certificates.ca), None, None, None
        )
        script: Script = lambda peer, asked: peer.send(whole("200 OK", b"a 5\n", "text/plain"))  # noqa: E731
        with scripted(script, context) as pages:
            assert fetch(f"{pages.url}/metrics", Deadline(60), settings).value("a") == 5
        assert [asked.headers["x-key"] for asked in pages.requests] == ["k"]

    def test_an_address_of_grpc_is_none_of_a_page(self, fetch: Fetch) -> None:
        with raises(InflightError, "invalid_parameter", naming="URL"):
            fetch("grpc://127.0.0.1:8001", Deadline(60))


def test_a_url_without_port_is_webs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_up(host: str, port: int, *rest: object, **more: object) -> list[object]:
        asked.append((host, port))
        return []

    resolve_examples(monkeypatch, look_up)
    for url in ("http://one.example/metrics", "https://two.example"):
        with pytest.raises(InflightError):
            fetch_metrics(url, Deadline(60))
    with pytest.raises(InflightError):
        asyncio.run(async_fetch_metrics("http://three.example", Deadline(60)))
    assert asked == [("one.example", 80), ("two.example", 443), ("three.example", 80)]
