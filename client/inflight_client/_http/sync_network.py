"""Connections whose reads, writes, connects and TLS handshakes meet the deadline of the current call."""

from __future__ import annotations

import ipaddress
import select
import socket
import ssl
import threading
from collections.abc import Iterable
from typing import Any

import httpcore2

from inflight_client._http.call_context import CONNECT_TIMEOUT, CURRENT, CallContext
from inflight_client.deadline import Deadline
from inflight_client.error_mapping import connection_closed, unknown_host, unreachable
from inflight_client.errors import InflightError

_Addresses = list[tuple[Any, ...]]

_TLS_END = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors if a peer closes the connection within TLS: OpenSSL's OP_IGNORE_UNEXPECTED_EOF, which some Pythons set
(Debian 12's 3.11.2), turns the first into the second."""

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}
"""After a minute of silence the kernel probes the peer three times, 20 seconds apart."""


class DeadlineNetwork(httpcore2.NetworkBackend):
    """Opens connections for httpcore2's pool and keeps track of them."""

    def __init__(self) -> None:
        self._open: set[DeadlineStream] = set()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        exchange = CURRENT.get()
        made = connect_within(exchange)
        addresses = _addresses(host, port, made, exchange)
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            sock = socket.socket(family, kind, protocol)
            stream = DeadlineStream(sock, self._open)
            try:
                exchange.attach(stream)
                # A silent host among several addresses must not use up the time of the next ones.
                sock.settimeout(_left(made, exchange) / (len(addresses) - position))
                sock.connect(address)
                set_options(sock)
                return stream
            except OSError:
                stream.close()
            except BaseException:
                stream.close()
                raise
        exchange.left()
        raise unreachable(exchange.where)

    def drop(self) -> None:
        """Close this process's copies of its parent's sockets: nothing is sent, the parent's stay open."""
        for stream in list(self._open):
            stream.drop()
        self._open.clear()


class DeadlineStream(httpcore2.NetworkStream):
    """A connection. One thread reads or writes at a time; any may abort or close it."""

    def __init__(self, sock: socket.socket, open_streams: set[DeadlineStream]) -> None:
        self._socket = sock
        self._open = open_streams
        self._open.add(self)
        self._lock = threading.Lock()
        self._busy = False
        self._closing = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange = CURRENT.get()
        exchange.attach(self)
        self._begin(httpcore2.ReadError)
        try:
            self._socket.settimeout(exchange.left())
            data = self._socket.recv(max_bytes)
        except TimeoutError:
            raise exchange.deadline.error() from None
        except OSError as error:
            raise connection_lost_error(error, httpcore2.ReadError, exchange) from None
        finally:
            self._end()
        exchange.record_data(data)
        if not data:
            exchange.peer_closed = True
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        exchange = CURRENT.get()
        exchange.attach(self)
        self._begin(httpcore2.WriteError)
        try:
            rest = memoryview(buffer)
            while rest:
                self._socket.settimeout(exchange.left())
                rest = rest[self._socket.send(rest) :]
        except TimeoutError:
            raise exchange.deadline.error() from None
        except OSError as error:
            raise connection_lost_error(error, httpcore2.WriteError, exchange) from None
        finally:
            self._end()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        exchange = CURRENT.get()
        made = connect_within(exchange)
        self._begin(httpcore2.ConnectError)
        try:
            self._socket = ssl_context.wrap_socket(
                self._socket, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            self._socket.settimeout(_left(made, exchange))
            self._socket.do_handshake()
        except (TimeoutError, OSError, ValueError) as error:
            self._closing = True
            exchange.left()
            raise tls_error(error, exchange) from None
        except BaseException:
            self._closing = True
            raise
        finally:
            self._end()
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._socket, ssl.SSLSocket):
            return self._socket
        if info == "socket":
            return self._socket
        if info == "is_readable":
            return is_readable(self._socket.fileno())
        return None

    def abort(self) -> None:
        """Abort the connection: a waiting reader wakes up, and the peer sees the end."""
        try:
            # Of the plain socket: TLS would destroy its state while another thread reads.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:  # not connected yet, or no longer
            pass

    def close(self) -> None:
        with self._lock:
            self._closing = True
            if not self._busy:
                self.drop()
                return
        # A closed socket's descriptor may be reused at once, while a thread still reads from this one.
        self.abort()

    def drop(self) -> None:
        """Close the socket without notifying the peer."""
        self._open.discard(self)
        self._socket.close()

    def _begin(self, error: type[Exception]) -> None:
        with self._lock:
            if self._closing:
                raise error("the connection was closed")
            self._busy = True

    def _end(self) -> None:
        with self._lock:
            self._busy = False
            if self._closing:
                self.drop()


def set_options(sock: Any) -> None:
    """Send without delay (TCP_NODELAY), and detect a vanished peer even in a call without a deadline."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # some systems lack some of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connect_within(exchange: CallContext) -> Deadline:
    """Return the deadline for connecting: the call's own, or CONNECT_TIMEOUT if that is earlier."""
    return exchange.deadline.sooner(Deadline(CONNECT_TIMEOUT, "a connection"))


def tls_error(error: Exception, exchange: CallContext) -> InflightError:
    """Return the error for a failed TLS handshake: a certificate, another protocol, or a closed connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return InflightError(
            f"the certificate of {exchange.where} can't be trusted: {error.verify_message or error.reason}; "
            "pass its CA certificate",
            "permission_denied",
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, _TLS_END):
        return InflightError(
            f"TLS with {exchange.where} failed ({error.reason or error}); check scheme, port and certificates",
            "permission_denied",
        )
    if isinstance(error, ValueError):
        return InflightError(f"{exchange.where} is not a valid name for a certificate: {error}", "invalid_parameter")
    if isinstance(error, _TLS_END) or (isinstance(error, ConnectionResetError) and error.errno is None):
        return connection_closed(exchange.where, "TLS")  # asyncio's own error has no errno
    return unreachable(exchange.where)


def name_error(error: Exception | None, exchange: CallContext) -> InflightError:
    """Return the error for a failed name lookup: an unknown host, or a resolver that could not answer."""
    if isinstance(error, UnicodeError):
        return unknown_host(exchange.where)
    if isinstance(error, socket.gaierror) and error.errno not in (socket.EAI_AGAIN, socket.EAI_SYSTEM):
        return unknown_host(exchange.where)
    return unreachable(exchange.where)


def connection_lost_error(error: OSError, kind: type[Exception], exchange: CallContext) -> Exception:
    """Return the error for a lost connection; TLS reports only here that the server requires a certificate."""
    exchange.peer_closed = True
    if isinstance(error, ssl.SSLError) and not isinstance(error, _TLS_END):
        return tls_error(error, exchange)
    return kind(error.strerror or str(error) or type(error).__name__)


def is_readable(descriptor: int) -> bool:
    """Return whether data or the end arrived on an idle connection."""
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _left(made: Deadline, exchange: CallContext) -> float:
    """Return the seconds left to connect. Raises InflightError if no time is left."""
    exchange.left()
    left = made.left()
    if not left:
        raise unreachable(exchange.where)
    return left


def _addresses(host: str, port: int, made: Deadline, exchange: CallContext) -> _Addresses:
    """Return the addresses of a host. Raises InflightError if it has no address."""
    addresses: _Addresses = []
    failed: list[Exception] = []

    def look_up() -> None:
        try:
            addresses.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    if _is_number(host):
        look_up()
    else:
        # The system's resolver has no timeout; if it is slower than the call, its thread ends later in the background.
        thread = threading.Thread(target=look_up, name="inflight_client name lookup", daemon=True)
        thread.start()
        thread.join(made.left())
        exchange.left()
    if not addresses:
        raise name_error(failed[0] if failed else None, exchange)
    return addresses


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
