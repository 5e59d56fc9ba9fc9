"""An HTTP server made of bare sockets: it trickles, stalls, cuts, doubles and lies as a test tells it to."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

SOON = 30.0
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class HttpRequestSeen(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return str(self.json["id"])


class Peer:
    """One connection, as the server sees it."""

    def __init__(self, sock: socket.socket, server: ScriptedHttp) -> None:
        self._sock = sock
        self._server = server
        self._read = b""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._sock.sendall(piece)

    def trickle(self, data: bytes, seconds: float = 0.01) -> None:
        """A byte now and then, for as long as the other side is there."""
        for position in range(len(data)):
            self.send(data[position : position + 1])
            self._server.over.wait(seconds)

    @property
    def over(self) -> bool:
        """Whether the test has ended."""
        return self._server.over.is_set()

    def wait_until_gone(self) -> bool:
        """Wait for the other side to hang up; False if it does not."""
        self._sock.settimeout(SOON)
        try:
            while self._sock.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        self._server.hung_up.release()
        return True

    def hang_up(self) -> None:
        self._sock.close()
        self._server.closed_one.release()

    def asked(self) -> HttpRequestSeen | None:
        """The next request; None when the other side hangs up."""
        while b"\r\n\r\n" not in self._read:
            if not self._more():
                return None
            if self._read.startswith(b"\x16"):  # TLS, to a server that knows none
                self.send(whole("400 Bad Request", b""))
                return None
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._read) < length:
            if not self._more():
                return None
        body, self._read = self._read[:length], self._read[length:]
        method, path, _ = first.split(" ")
        return HttpRequestSeen(method, path, headers, body)

    def _more(self) -> bool:
        data = self._sock.recv(65536)
        self._read += data
        return bool(data)


Script = Callable[[Peer, HttpRequestSeen], object]
"""What to do about a request; called for each, as long as the connection is open."""


class ScriptedHttp:
    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[HttpRequestSeen] = []
        self.connections = 0
        self.over = threading.Event()
        self.hung_up = threading.Semaphore(0)
        """Released for each connection that the client closed while the script waited for that."""
        self.closed_one = threading.Semaphore(0)
        """Released for each connection that the script closed."""
        self._script = script
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://{self.address}"

    def close(self) -> None:
        self.over.set()
        for sock in [self._listener, *self._open]:
            try:
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        for thread in self._threads:
            thread.join(SOON)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            self._threads.append(thread := threading.Thread(target=self._serve, args=(sock,), daemon=True))
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._context is not None:
                self._open.discard(sock)
                sock = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                self._open.add(sock)
                self._shake_hands(sock)
            peer = Peer(sock, self)
            while asked := peer.asked():
                self.requests.append(asked)
                self._script(peer, asked)
        except OSError:
            pass
        finally:
            self._open.discard(sock)
            sock.close()

    @staticmethod
    def _shake_hands(sock: ssl.SSLSocket) -> None:
        try:
            sock.do_handshake()
        except ssl.SSLError:
            # Were it closed with bytes unread, the kernel's reset could overtake the words that say why.
            socket.socket.shutdown(sock, socket.SHUT_WR)
            while socket.socket.recv(sock, 65536):
                pass
            raise


@contextmanager
def scripted(script: Script, context: ssl.SSLContext | None = None) -> Iterator[ScriptedHttp]:
    server = ScriptedHttp(script, context)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that says nothing to who would connect: its queue is full, so the kernel drops what comes."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.2", 0), backlog=0))
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield f"127.0.0.2:{full.getsockname()[1]}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(**values: Any) -> bytes:
    """A server-sent event with a piece of an answer, as one chunk of the body."""
    return chunk(b"data: " + json.dumps(values).encode() + b"\n\n")


def whole(status: str, body: bytes, kind: str = "application/json") -> bytes:
    """An answer with a length."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def answer(peer: Peer, asked: HttpRequestSeen, *texts: str) -> None:
    """A whole answer as Triton gives it: each text an event with the request's id."""
    peer.send(STREAM_HEAD, *(event(id=asked.id, text_output=text) for text in texts), END)
