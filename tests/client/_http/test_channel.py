"""How connections are made: TLS, proxies, names, and what a child process inherits."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from inflight_client._sync.http_transport import HttpTransport
from inflight_client.address import Address, Tls
from inflight_client.deadline import NEVER, Deadline
from inflight_client.errors import InflightError

from tests.client._http.scripted_server import HttpRequestSeen, Peer, answer, scripted
from tests.client._http.transports import request
from tests.client.support.leak_checks import nothing_left
from tests.client.support.transports import TransportVariant, both_http
from tests.fixtures.certificates import Certificate, Certificates
from tests.fixtures.errors import raises
from tests.fixtures.host_names import resolve_examples


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    with nothing_left():
        yield


def _told(peer: Peer, asked: HttpRequestSeen) -> None:
    answer(peer, asked, "of ", asked.id)


def _context(shown: Certificate, wanted: Certificates | None = None) -> ssl.SSLContext:
    """A server's; with `wanted` it wants the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    if wanted is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(wanted.ca)
    return context


def _context_that_ignores_eof() -> ssl.SSLContext:
    """As some Pythons make every context by themselves: Debian 12's 3.11.2."""
    context = ssl.create_default_context()
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


def _hang_up(listener: socket.socket, how: str) -> None:
    """On any peer that sends something."""
    sock, _ = listener.accept()
    with sock:
        sock.recv(65536)
        if how == "rst":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@both_http
class TestTls:
    def test_with_the_authority_of_the_server(self, way: TransportVariant, certificates: Certificates) -> None:
        with (
            scripted(_told, _context(certificates.server)) as server,
            way.to(server.url, tls=Tls(ca=certificates.ca)) as caller,
        ):
            assert caller.texts(request("a")) + caller.texts(request("b")) == ["of ", "a", "of ", "b"]
        assert server.connections == 1

    @pytest.mark.parametrize("which", ["stranger", "elsewhere"])
    def test_a_certificate_that_is_not_trusted(
        self, way: TransportVariant, certificates: Certificates, which: str
    ) -> None:
        with (
            scripted(_told, _context(getattr(certificates, which))) as server,
            way.to(server.url, tls=Tls(ca=certificates.ca)) as caller,
            raises(InflightError, "permission_denied", naming="certificate"),
        ):
            caller.texts(request())

    def test_without_an_authority_the_systems_are_asked(
        self, way: TransportVariant, certificates: Certificates
    ) -> None:
        with (
            scripted(_told, _context(certificates.server)) as server,
            way.to(server.url) as caller,
            raises(InflightError, "permission_denied", naming="certificate"),
        ):
            caller.texts(request())

    @pytest.mark.parametrize("shown", [True, False])
    def test_a_server_that_wants_the_clients(
        self, way: TransportVariant, certificates: Certificates, shown: bool
    ) -> None:
        own = certificates.client if shown else Certificate(None, None)  # type: ignore[arg-type]
        tls = Tls(certificates.ca, own.certificate, own.key)
        with (
            scripted(_told, _context(certificates.server, certificates)) as server,
            way.to(server.url, tls=tls) as caller,
        ):
            if shown:
                assert caller.texts(request("a")) == ["of ", "a"]
            else:
                with raises(InflightError, "permission_denied"):
                    caller.texts(request())

    def test_a_server_without_tls(self, way: TransportVariant) -> None:
        with (
            scripted(_told) as server,
            way.to(server.url.replace("http", "https")) as caller,
            raises(InflightError, "permission_denied", naming="TLS"),
        ):
            caller.texts(request(), Deadline(30))

    @pytest.mark.parametrize("ignore_eof", [True, False])
    @pytest.mark.parametrize(("how", "code"), [("fin", "connection_closed"), ("rst", "server_unreachable")])
    def test_who_hangs_up_on_it_may_have_none(
        self, way: TransportVariant, how: str, code: str, ignore_eof: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As Triton's plain port does, in an orderly way; a network breaks connections in others."""
        if ignore_eof:
            monkeypatch.setattr("httpcore2.default_ssl_context", _context_that_ignores_eof)
        with socket.create_server(("127.0.0.1", 0)) as plain, ThreadPoolExecutor(1) as pool:
            pool.submit(_hang_up, plain, how)
            url = f"https://127.0.0.1:{plain.getsockname()[1]}"
            named = (url, "TLS") if how == "fin" else url
            with way.to(url) as caller, raises(InflightError, code, naming=named):
                caller.texts(request(), Deadline(30))

    def test_a_handshake_that_does_not_go_on(self, way: TransportVariant) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            way.to(f"https://127.0.0.1:{silent.getsockname()[1]}") as caller,
            pytest.raises(InflightError) as caught,
        ):
            caller.texts(request(), Deadline(0.1))
        assert caught.value.code == "deadline_exceeded"


@both_http
class TestProxies:
    def test_the_environments_is_used(self, way: TransportVariant, monkeypatch: pytest.MonkeyPatch) -> None:
        with scripted(_told) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:p%40ss@"))
            with way.to("http://triton.example:8000/llm") as caller:
                assert caller.texts(request("a"), Deadline(30)) == ["of ", "a"]
        (asked,) = proxy.requests
        assert asked.path == "http://triton.example:8000/llm/v2/models/ensemble/generate_stream"
        assert asked.headers["host"] == "triton.example:8000"
        assert asked.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"

    def test_tls_goes_through_it(
        self, way: TransportVariant, monkeypatch: pytest.MonkeyPatch, certificates: Certificates
    ) -> None:
        def refuse(peer: Peer, asked: HttpRequestSeen) -> None:
            peer.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        with scripted(refuse) as proxy:
            monkeypatch.setenv("https_proxy", proxy.url)
            with (
                way.to("https://triton.example") as caller,
                raises(InflightError, "server_unreachable", naming="proxy"),
            ):
                caller.texts(request("a"), Deadline(30))
        assert [(asked.method, asked.path) for asked in proxy.requests] == [("CONNECT", "triton.example:443")]

    def test_this_machine_needs_none(self, way: TransportVariant, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        with scripted(_told) as server, way.to(server.url) as caller:
            assert caller.texts(request("a")) == ["of ", "a"]

    def test_nor_who_is_excepted(self, way: TransportVariant, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "triton.example")
        found = socket.getaddrinfo
        with scripted(_told) as server:
            port = server.address.rpartition(":")[2]
            resolve_examples(monkeypatch, lambda host, *rest, **more: found("127.0.0.1", *rest, **more))
            with way.to(f"http://triton.example:{port}") as caller:
                assert caller.texts(request("a"), Deadline(30)) == ["of ", "a"]

    def test_one_that_is_none_is_refused_at_once(self, way: TransportVariant, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
        with raises(InflightError, "invalid_parameter", naming="http_proxy"), way.to("http://triton.example"):
            pass


class TestNames:
    def test_of_several_addresses_one_that_answers_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = socket.getaddrinfo

        def look_up(host: str, port: int, *rest: object, **more: object) -> list[object]:
            other = [(family, kind, 6, "", ("127.0.0.2", 1)) for family, kind, *_ in found("127.0.0.1", port, type=1)]
            return [*other, *found("127.0.0.1", port, type=1)]

        resolve_examples(monkeypatch, look_up)
        with scripted(_told) as server:
            for way in (TransportVariant("http", False), TransportVariant("http", True)):
                with way.to(f"http://two.example:{server.address.rpartition(':')[2]}") as caller:
                    assert caller.texts(request("a"), Deadline(30)) == ["of ", "a"]

    def test_one_that_is_not_ascii(self) -> None:
        HttpTransport(Address.parse("http://bücher.example"), {}, None).close()
        with raises(InflightError, "invalid_parameter", naming="host"):
            HttpTransport(Address.parse("http://" + "ü" * 99), {}, None)


_FORK = """
import asyncio, os, sys
from inflight_client.address import Address, Tls
from inflight_client.deadline import NEVER, Deadline
from inflight_client.errors import InflightError
from inflight_client._async.http_transport import AsyncHttpTransport
from inflight_client._sync.http_transport import HttpTransport
from tests.client._http.transports import request

address, tls = Address.parse(sys.argv[1]), Tls(ca=sys.argv[2])

def sockets():
    fds = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.exists(fd) and os.readlink(fd).startswith("socket:") for fd in fds)

def in_child(work):
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0

def threads():
    transport = HttpTransport(address, {}, tls)
    whole = lambda name: [response.text("text_output") for response in transport.infer(request(name), end, end)]
    end = Deadline(30)
    assert whole("kept") == ["of ", "kept"]
    half = transport.infer(request("half"), end, end)
    assert next(half).text("text_output") == "of "

    def child():
        assert sockets() == 0, sockets()
        assert whole("child") == ["of ", "child"]
        try:
            next(half)
        except InflightError as error:
            assert error.code == "client_forked", error.code
        half.close()
        transport.close()
        assert sockets() == 0, sockets()

    in_child(child)
    assert [response.text("text_output") for response in half] == ["half"]
    assert whole("parent") == ["of ", "parent"]
    transport.close()

async def aio():
    transport = AsyncHttpTransport(address, {}, tls)
    end = Deadline(30)

    async def whole(name):
        return [response.text("text_output") async for response in transport.infer(request(name), end, end)]

    assert await whole("kept") == ["of ", "kept"]
    half = transport.infer(request("half"), end, end)
    assert (await anext(half)).text("text_output") == "of "

    held = sockets()

    async def own():
        assert await whole("child") == ["of ", "child"]
        await half.close()
        await transport.close()

    def child():
        assert sockets() == held - 1, (sockets(), held)
        asyncio._set_running_loop(None)
        asyncio.run(own())

    in_child(child)
    assert [response.text("text_output") async for response in half] == ["half"]
    assert await whole("parent") == ["of ", "parent"]
    await transport.close()

threads() if sys.argv[3] == "threads" else asyncio.run(aio())
print("well")
"""


@both_http
def test_a_child_process_has_connections_of_its_own(way: TransportVariant, certificates: Certificates) -> None:
    """And what it does with its copies, TLS included, does not disturb the parent's."""
    with scripted(_told, _context(certificates.server)) as server:
        what = [server.url, str(certificates.ca), str(way)]
        command = [sys.executable, "-W", "error::ResourceWarning", "-c", _FORK, *what]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (found.stdout, found.returncode) == ("well\n", 0), found.stderr
    names = sorted(asked.id for asked in server.requests)
    assert names == ["child", "half", "kept", "parent"]


@both_http
def test_nothing_is_opened_before_the_first_call(way: TransportVariant) -> None:
    with scripted(_told) as server, way.to(server.url), nothing_left():
        pass
    assert server.connections == 0


def test_a_question_without_deadline_is_asked() -> None:
    with (
        scripted(lambda peer, asked: peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")) as server,
        TransportVariant("http", False).to(server.url) as caller,
    ):
        assert caller.ask("ready", NEVER) is False
