"""Server addresses, headers and TLS files."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from inflight_client.dialects import validate_dialect
from inflight_client.errors import InflightError
from inflight_client.validation import invalid_value, shorten

_PORTS = {"grpc": 8001, "grpcs": 8001, "http": 8000, "https": 443}
_OPENAI_PATH = "/v1"
_OPENAI_SCHEME = "openai+"
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""The name of an environment variable; hardly ever an API key, which messages do not show."""
_HOST = re.compile(
    r"[0-9A-Za-z._~-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[0-9A-Za-z._~-]+)?|(?=.*[^\x00-\x7f])[^\x00-,/:-@\[-^`{-\x7f\s]+"
)
"""A name, an IPv6 address (perhaps with its zone), or an international name."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_GRPC_HEADER = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
"""https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: `-bin` marks bytes, `grpc-` is reserved."""
_RESERVED_HEADERS = {
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "inference-header-content-length",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
"""Headers that control how a message is sent. The client sets them itself; other values would corrupt the message."""


@dataclass(frozen=True)
class Tls:
    """PEM files: `ca` replaces the system's CA certificates; `certificate` and `key` identify the client."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            path = getattr(self, name)
            if path is not None and not (isinstance(path, str | Path) and str(path)):
                raise invalid_value(f"tls.{name}", path, "the path of a file")


@dataclass(frozen=True)
class Address:
    """A server's address: `scheme` is grpc, grpcs, http or https; `path` a prefix for a reverse proxy (http(s) only);
    an address whose path ends in /v1 is that of an OpenAI-compatible gateway. `openai+http(s)://HOST[:PORT][/PATH]` is
    any server of OpenAI's protocol, whose API is at `path` (/v1 by default). Its query may name the `model`, the
    environment variable with the API `key`, and the `dialect`, which is otherwise detected.

    >>> Address.parse("triton.example:9001")
    Address(scheme='grpc', host='triton.example', port=9001, path='')
    >>> Address.parse("https://triton.example/llm").url
    'https://triton.example:443/llm'
    >>> Address.parse("openai+https://llm.example/v1?model=tea&key=TEA_KEY").model
    'tea'
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    model: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    dialect: str = field(default="", repr=False)
    backend: bool = field(default=False, repr=False)
    """Whether it is written `openai+`."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address; the default scheme is grpc. Raises InflightError `invalid_parameter`."""
        if not isinstance(text, str):
            raise invalid_value("the address", text, "a text, HOST:PORT or a URL")
        if "@" in re.split("[/?#]", text.partition("://")[2] or text)[0]:  # not shown: it may hold a password
            raise InflightError(
                "the address has a user or a password in it; leave them out, and give headers={'authorization': ...}",
                "invalid_parameter",
            )
        shown = shorten(text.partition("?")[0])  # a query may hold a key
        backend = text[: len(_OPENAI_SCHEME)].lower() == _OPENAI_SCHEME
        url, _, query = text[len(_OPENAI_SCHEME) :].partition("?") if backend else (text, "", "")
        try:
            parts = urlsplit(url if "://" in url else f"grpc://{url}")
            port = parts.port
        except ValueError as error:
            raise InflightError(
                f"the address {shown} can't be read ({error}); write HOST:PORT, an IPv6 host in brackets",
                "invalid_parameter",
            ) from None
        if not _is_usable(text, parts) or (backend and not parts.scheme.startswith("http")):
            raise InflightError(
                f"the address {shown} can't be used; it must be HOST:PORT, or a URL of {', '.join(_PORTS)},"
                " openai+http or openai+https",
                "invalid_parameter",
            )
        path = parts.path.rstrip("/")
        if path and not parts.scheme.startswith("http"):
            raise InflightError(
                f"the address {shown} has a path, but gRPC addresses have none; give a URL that begins with http://",
                "invalid_parameter",
            )
        if backend:
            path = path or _OPENAI_PATH
        if port is None:
            port = 80 if parts.scheme == "http" and (backend or path.endswith(_OPENAI_PATH)) else _PORTS[parts.scheme]
        return cls(parts.scheme, parts.hostname or "", port, path, **_parsed_query(query), backend=backend)

    @property
    def http(self) -> bool:
        return self.scheme.startswith("http")

    @property
    def openai(self) -> bool:
        """Whether this is an OpenAI-compatible API, not a Triton server."""
        return self.backend or (self.http and self.path.endswith(_OPENAI_PATH))

    def api_key(self) -> str:
        """Return the API key of the variable `key`; empty if the address names none.

        Raises InflightError `invalid_parameter` if it is not set, or would be sent in the clear beyond this machine.
        """
        if not self.key:
            return ""
        if not (self.secure or self.loopback):
            raise InflightError(
                f"the API key in {self.key} would be sent to {self.host} without encryption; write openai+https://",
                "invalid_parameter",
            )
        if not (value := os.environ.get(self.key, "").strip()):
            raise InflightError(
                f"the environment variable {self.key}, named as the key of {self.url}, is not set; set it to the API"
                " key",
                "invalid_parameter",
            )
        return value

    @property
    def secure(self) -> bool:
        return self.scheme.endswith("s")

    @property
    def authority(self) -> str:
        """Return HOST:PORT, with an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _parsed_query(query: str) -> dict[str, str]:
    """Return the parts of an `openai+` address's query. Raises InflightError `invalid_parameter`."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in ("model", "key", "dialect") or name in found:
            raise InflightError(
                "the query of an address may have model, key and dialect, each once; leave out anything else",
                "invalid_parameter",
            )
        if not (value and value.isprintable()):
            raise InflightError(f"the address's {name} must be a name; give one, or leave it out", "invalid_parameter")
        if name == "key" and not _VARIABLE.fullmatch(value):  # not shown: it may be the key itself
            raise InflightError(
                "the address's key must be the name of an environment variable in capital letters, which has the API"
                " key",
                "invalid_parameter",
            )
        found[name] = validate_dialect(value) if name == "dialect" else value
    return found


def _is_usable(text: str, parts: SplitResult) -> bool:
    """Return whether the URL has only the parts that an address may have."""
    return (
        parts.scheme in _PORTS
        and _HOST.fullmatch(parts.hostname or "") is not None
        and parts.port != 0
        and not parts.netloc.endswith(":")
        and not parts.path.startswith("//")
        and not parts.query
        and not parts.fragment
        and text.isprintable()  # urlsplit silently drops line breaks
        and " " not in text
    )


def parse_header(text: str) -> tuple[str, str]:
    """Parse a header written as `NAME: VALUE`, as for curl. Raises InflightError (`invalid_parameter`)."""
    name, colon, value = text.partition(":")
    if not name.strip() or not colon:  # the text, which may be a secret that lost its name, is not repeated
        raise InflightError("a header is written as NAME: VALUE.", "invalid_parameter")
    return name.strip(), value.strip()


def validate_headers(headers: Any, address: Address) -> dict[str, str]:
    """Return the headers with lower-case names. Raises InflightError `invalid_parameter` for invalid ones."""
    if not isinstance(headers, Mapping):
        raise InflightError(
            f"headers is a {type(headers).__name__}; it must be a mapping from names to texts", "invalid_parameter"
        )
    for name, value in headers.items():
        if not (isinstance(name, str) and _HEADER.fullmatch(name)):
            raise InflightError(f"{shorten(name)} is not a valid header name", "invalid_parameter")
        if name.lower() in _RESERVED_HEADERS:
            raise InflightError(
                f"the header {name} is set by the client itself; leave it out",
                "invalid_parameter",
            )
        if not address.http and not _GRPC_HEADER.fullmatch(name.lower()):
            raise InflightError(
                f"{shorten(name)} is not a valid header name for gRPC; use letters, digits and _.-, and"
                " neither begin it with grpc- nor end it with -bin",
                "invalid_parameter",
            )
        if not (isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()):
            raise InflightError(
                f"the header {name} must be printable ASCII text without spaces around it", "invalid_parameter"
            )
    return {name.lower(): value for name, value in headers.items()}
