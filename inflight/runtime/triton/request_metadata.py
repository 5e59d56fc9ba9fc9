"""On whose account a request runs, as part of which trace, and what sent it: request parameters of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from inflight import __version__, compatible
from inflight.runtime.messages import RequestError, RequestMetadata

METADATA_PARAMETERS = ("tenant", "traceparent", "inflight_client")

_NAME = re.compile(r"[ -~]{1,128}")
"""Printable ASCII, as it may go into logs and labels."""
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LENGTH = 55
_MAX_VERSIONS = 100


def metadata_from(given: Mapping[str, Any]) -> RequestMetadata | None:
    """What a request's parameters say of it; None where they say nothing.

    Raises RequestError (`invalid_parameter`) for what is no string, or no name. A traceparent that is none counts as
    not sent, as W3C's Trace Context (section 3.2.2) asks for.
    """
    texts = {name: _text(name, given[name]) for name in METADATA_PARAMETERS if name in given}
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


def metadata_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a request's parameters that say where it comes from, to be sent on with it."""
    return {name: given[name] for name in METADATA_PARAMETERS if given.get(name)}


class ClientVersions:
    """Tells `report` of each version of the client that does not fit this one, once."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._seen: set[str] = set()

    def check(self, metadata: RequestMetadata | None) -> None:
        """A request has come; an origin without a version says nothing."""
        client = "" if metadata is None else metadata.client
        if not client or client in self._seen or len(self._seen) >= _MAX_VERSIONS:
            return
        self._seen.add(client)
        if not compatible(client, __version__):
            self._report(
                f"a client of inflight {client} sends requests to this server of {__version__}; what one of them does"
                " not know is missing or refused, so install the same version on both sides"
            )


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} is of type {type(value).__name__}; it must be a string", "invalid_parameter")
    return value


def _traceparent(text: str) -> str:
    """Its part that version 00 knows; later versions may have more behind it."""
    found = _TRACEPARENT.match(text)
    if found is None or (len(text) > _LENGTH and (found[1] == "00" or text[_LENGTH] != "-")):
        return ""
    return found[0]
