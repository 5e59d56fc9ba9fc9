"""Request metadata: inflight's request parameters for tenant, trace and client version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from inflight import __version__, compatible
from inflight.common.request_error import RequestError
from inflight.runtime.messages import RequestMetadata

METADATA_PARAMETERS = ("tenant", "traceparent", "inflight_client")

_NAME = re.compile(r"[ -~]{1,128}")
"""Printable ASCII, as it may go into logs and labels."""
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LENGTH = 55
_MAX_VERSIONS = 100


def metadata_from(request_parameters: Mapping[str, Any]) -> RequestMetadata | None:
    """Return the metadata in a request's parameters; None if there is no metadata.

    Raises RequestError (`invalid_parameter`) for a value that is not a string, or an invalid name. An invalid
    traceparent counts as not sent, as W3C's Trace Context (section 3.2.2) requires.
    """
    texts = {name: _text(name, request_parameters[name]) for name in METADATA_PARAMETERS if name in request_parameters}
    for name in ("tenant", "inflight_client"):
        text = texts.get(name, "")
        if text and not _NAME.fullmatch(text):
            raise RequestError(
                f"{name} must be at most 128 printable ASCII characters; shorten it", "invalid_parameter"
            )
    origin = RequestMetadata(
        texts.get("tenant", ""), _traceparent(texts.get("traceparent", "")), texts.get("inflight_client", "")
    )
    return origin if any(origin) else None


class ClientVersions:
    """Reports each client version that differs from this one to `report`, once."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._seen: set[str] = set()

    def check(self, metadata: RequestMetadata | None) -> None:
        """Check a request's metadata; metadata without a version is ignored."""
        client = "" if metadata is None else metadata.client
        if not client or client in self._seen or len(self._seen) >= _MAX_VERSIONS:
            return
        self._seen.add(client)
        if not compatible(client, __version__):
            self._report(
                f"a client of inflight {client} sends requests to this server of {__version__}; values that only one of"
                " them supports are missing or refused, so install the same version on both sides"
            )


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} is of type {type(value).__name__}; it must be a string", "invalid_parameter")
    return value


def _traceparent(text: str) -> str:
    """Return the part of it that version 00 defines; later versions may append more."""
    match = _TRACEPARENT.match(text)
    if match is None or (len(text) > _LENGTH and (match[1] == "00" or text[_LENGTH] != "-")):
        return ""
    return match[0]
