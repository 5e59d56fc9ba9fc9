"""Where a server is, and how to get there."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from inflight_client.errors import InflightError

_PORTS = {"grpc": 8001, "grpcs": 8001, "http": 8000, "https": 443}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class Tls:
    """Files of certificates, as PEM: `ca` to trust instead of the system's, `certificate` and `key` to show."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None


@dataclass(frozen=True)
class Address:
    """A server's address: `scheme` is grpc, grpcs, http or https; `path` a prefix for a reverse proxy, http(s) alone.

    >>> Address.parse("triton.example:9001")
    Address(scheme='grpc', host='triton.example', port=9001, path='')
    >>> Address.parse("https://triton.example/llm").url
    'https://triton.example:443/llm'
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address; without a scheme it is gRPC's. Raises InflightError `invalid_parameter`."""
        try:
            parts = urlsplit(text if "://" in text else f"grpc://{text}")
            port = parts.port
        except (ValueError, TypeError) as error:
            raise InflightError(f"the address {text!r} can't be read: {error}", "invalid_parameter") from None
        if parts.scheme not in _PORTS or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise InflightError(
                f"the address {text!r} can't be used; it must be HOST:PORT, or a URL of {', '.join(_PORTS)}",
                "invalid_parameter",
            )
        path = parts.path.rstrip("/")
        if path and not parts.scheme.startswith("http"):
            raise InflightError(f"the address {text!r} has a path, which gRPC has not", "invalid_parameter")
        return cls(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, path)

    @property
    def http(self) -> bool:
        return self.scheme.startswith("http")

    @property
    def secure(self) -> bool:
        return self.scheme.endswith("s")

    @property
    def authority(self) -> str:
        """HOST:PORT, an IPv6 host in brackets."""
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


def checked_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers with lower-case names. Raises InflightError `invalid_parameter` for what can't be sent."""
    for name, value in headers.items():
        if not (isinstance(name, str) and _HEADER.fullmatch(name)):
            raise InflightError(f"{name!r} can't be the name of a header", "invalid_parameter")
        if not (isinstance(value, str) and value.isascii() and value.isprintable()):
            raise InflightError(f"the header {name} must be printable ASCII text", "invalid_parameter")
    return {name.lower(): value for name, value in headers.items()}
