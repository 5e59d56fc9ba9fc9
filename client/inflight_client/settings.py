"""What a client is made with, the same for both clients."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inflight_client.address import Address, Tls, checked_headers
from inflight_client.call import Call, Prompt
from inflight_client.errors import InflightError

if TYPE_CHECKING:
    from inflight_client.chat_template import ChatTemplate

METRICS_PORT = 8002


@dataclass(frozen=True)
class Settings:
    """Where the server is, how to get there, and what holds for every call that does not say otherwise."""

    address: Address
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: Tls | None = None
    timeout: float | None = None
    chat_template: ChatTemplate | None = None
    metrics_url: str = ""

    @classmethod
    def of(
        cls,
        address: str,
        model: str | None,
        headers: Mapping[str, str] | None,
        tls: Tls | None,
        timeout: float | None,
        chat_template: Any,
        metrics_url: str | None,
    ) -> Settings:
        """Check them. Raises InflightError (`invalid_parameter`, `no_chat_template`)."""
        where = Address.parse(address)
        if tls is not None and not where.secure:
            raise InflightError(
                f"certificates are given and the address {address!r} asks for no TLS; write grpcs:// or https://",
                "invalid_parameter",
            )
        host = f"[{where.host}]" if ":" in where.host else where.host
        return cls(
            where,
            model,
            checked_headers(dict(headers or {})),
            tls,
            timeout,
            _template(chat_template),
            metrics_url or f"http://{host}:{METRICS_PORT}/metrics",
        )

    def call(self, prompt: Prompt, options: Mapping[str, Any], stream: bool) -> Call:
        """One call, with an id and the client's own timeout where the caller gives none."""
        given = {"timeout": self.timeout, **options}
        return Call(prompt, stream, **{**given, "request_id": given.get("request_id") or uuid.uuid4().hex})


def _template(given: Any) -> ChatTemplate | None:
    """A template from a directory, or as it is."""
    if given is None:
        return None
    from inflight_client.chat_template import ChatTemplate

    return given if isinstance(given, ChatTemplate) else ChatTemplate.from_directory(given)
