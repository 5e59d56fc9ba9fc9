"""HTTP requests to one server, the same for blocking code and asyncio."""

from __future__ import annotations

import email.utils
import math
import ssl
import time
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpcore2

from inflight_client import tls_files
from inflight_client._http.call_context import CallContext
from inflight_client.address import Address, Tls
from inflight_client.error_mapping import not_triton
from inflight_client.errors import InflightError

MAX_CONNECTIONS = 1024
"""Maximum of connections, one for each call; further calls wait, within their deadlines, for a free one."""
MAX_KEEPALIVE_CONNECTIONS = 128
"""Maximum of idle connections kept for reuse."""
KEEPALIVE_EXPIRY = 20.0
"""Seconds to keep an idle connection; less than the minute after which proxies commonly close them."""
_MAX_RETRY_AFTER = 3600.0
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Maximum size of a response that is not streamed."""


class HttpChannel:
    """A server with the headers and TLS settings of every request. Raises InflightError for invalid settings.

    Proxies are those of the environment (`http_proxy`, `https_proxy`, `no_proxy`), except for loopback addresses;
    SOCKS is not supported.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self.address = address
        self.where = address.url
        self._headers = dict(headers)
        self._path = quote(address.path, safe="/%~!$&'()*+,;=:@")
        try:
            self._host = address.host.encode("ascii" if address.host.isascii() else "idna")
        except UnicodeError as error:
            raise InflightError(f"{address.host!r} is not a valid host name: {error}", "invalid_parameter") from None
        self.options: dict[str, Any] = {
            "ssl_context": ssl_context(tls) if address.secure else None,
            "proxy": None if address.loopback else _proxy(address),
            "max_connections": MAX_CONNECTIONS,
            "max_keepalive_connections": MAX_KEEPALIVE_CONNECTIONS,
            "keepalive_expiry": KEEPALIVE_EXPIRY,
        }
        """Arguments of httpcore2's pool of connections."""

    def request(
        self, path: str, exchange: CallContext, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> httpcore2.Request:
        """Return a GET request, or with content a POST. `headers` override the client's own.

        Only inference (`headers` given) reuses its connection, since its responses contain the request's id; other
        responses could not be told from those to an earlier request.
        """
        fields = {
            "host": self.address.authority,
            "accept": "*/*",
            "user-agent": "inflight_client",
            **self._headers,
            **(headers or {}),
        }
        if content is not None:
            fields["content-length"] = str(len(content))
            fields.setdefault("content-type", "application/json")
        if headers is None:
            fields["connection"] = "close"
        return httpcore2.Request(
            "GET" if content is None else "POST",
            httpcore2.URL(
                scheme=self.address.scheme, host=self._host, port=self.address.port, target=self._path + path or "/"
            ),
            headers=[(name.encode(), value.encode()) for name, value in fields.items()],
            content=content,
            extensions={"timeout": {"pool": exchange.left()}},
        )


def content_type(response: httpcore2.Response) -> str:
    return header(response, b"content-type").lower()


def header(response: httpcore2.Response, name: bytes) -> str:
    """Return a header's value; empty without it. `name` is in lower case."""
    return next((value.decode("latin-1") for field, value in response.headers if field.lower() == name), "")


def retry_after(response: httpcore2.Response) -> float | None:
    """Return the seconds after which the server asks to send the request again; None without a header that says so."""
    milliseconds, text = header(response, b"retry-after-ms"), header(response, b"retry-after").strip()
    try:
        seconds = float(milliseconds) / 1000 if milliseconds else float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER) if math.isfinite(seconds) else None


def check_stream(response: httpcore2.Response, where: str) -> None:
    """Raise InflightError `unsupported_deployment` unless this is a stream whose end differs from a lost connection.

    Triton uses chunked encoding. Behind an HTTP/1.0 proxy a stream ends with the connection, and most upstream
    deployments do not mark a complete answer.
    """
    kind = content_type(response)
    if not kind.startswith("text/event-stream"):
        raise not_triton(where, f"it sends {kind or 'no type'!r} instead of server-sent events")
    if not any(name.lower() in (b"transfer-encoding", b"content-length") for name, _ in response.headers):
        raise InflightError(
            f"the response from {where} has neither chunks nor a length, so its end looks like a broken connection;"
            " configure the proxy to speak HTTP/1.1",
            "unsupported_deployment",
        )


def body_too_long(where: str) -> InflightError:
    return InflightError(f"the server at {where} answered with more than {MAX_BODY_BYTES} bytes", "answer_damaged")


def ssl_context(tls: Tls | None) -> ssl.SSLContext:
    """Return a context that trusts the system's certificates (or SSL_CERT_FILE, SSL_CERT_DIR) unless a CA is given."""
    tls = tls or Tls()
    tls_files.read_tls_files(tls)  # its error names the invalid file
    context = httpcore2.default_ssl_context() if tls.ca is None else ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key, password="")
    return context


def _proxy(address: Address) -> httpcore2.Proxy | None:
    url = urllib.request.getproxies().get(address.scheme, "")
    if not url or urllib.request.proxy_bypass(f"{address.host}:{address.port}"):
        return None
    try:
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        if proxy.scheme != "http" or not proxy.hostname:
            raise ValueError("it must be http://HOST:PORT")
        auth = None if proxy.username is None else (unquote(proxy.username), unquote(proxy.password or ""))
        return httpcore2.Proxy(httpcore2.URL(scheme="http", host=proxy.hostname, port=proxy.port, target="/"), auth)
    except ValueError as error:
        raise InflightError(
            f"the environment's {address.scheme}_proxy can't be used: {error}", "invalid_parameter"
        ) from None
