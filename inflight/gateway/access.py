"""Who may use the gateway: API keys, and the pages that a browser shows."""

from __future__ import annotations

import re

from inflight.gateway.http import Request
from inflight.gateway.key_ring import Caller, KeyRing
from inflight.gateway.pages import PAGES
from inflight.gateway.settings import GatewaySettings, is_loopback
from inflight.openai_api.errors import ApiError

_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]{1,64}(, ?[A-Za-z0-9-]{1,64}){0,63}")
_EXPOSED_HEADERS = ", ".join(
    (
        *(
            "x-request-id",
            "retry-after",
            "retry-after-ms",
            "x-inflight-cache",
            "x-inflight-no-effect",
            "x-inflight-degraded",
            "x-inflight-target",
            "x-inflight-tool-call-parser",
        ),
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
    )
)
_HEALTH_PATHS = frozenset(("/health", "/ready"))
_OPEN_PATHS = _HEALTH_PATHS | PAGES.keys()
"""Paths that need no API key: health, and the pages, which hold no data. Every other one does, known or not."""


class Access:
    """Recognizes callers by their keys. Without keys, keeps web pages from using the gateway of their machine."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Read the keys. Raises InflightError, `storage_denied` or `keys_invalid`, if their file is unusable."""
        self._settings = settings
        self._keys = KeyRing.load(settings.keys)

    @property
    def policy(self) -> str | None:
        """The SHA-256 of the key file without the keys' digests; None: there is no usable one."""
        return self._keys.policy

    @staticmethod
    def is_open(request: Request) -> bool:
        """Return whether a request needs no key, since it asks for health or a page."""
        return request.path in _OPEN_PATHS and request.method in ("GET", "HEAD")

    def authenticate(self, request: Request) -> Caller:
        """Return who calls. Raises ApiError 401, which says the same for every wrong key."""
        if not self._keys.required:
            if request.path not in _HEALTH_PATHS:
                self._refuse_foreign_pages(request)
            return Caller()
        if self.is_open(request):
            return Caller()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        key = self._keys.authenticate(token.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            raise ApiError(
                "the API key is missing or not valid; send it as Authorization: Bearer KEY",
                "invalid_api_key",
                status=401,
                headers={"www-authenticate": "Bearer"},
            )
        return Caller(key.tenant, frozenset(key.models), key)

    def _refuse_foreign_pages(self, request: Request) -> None:
        """Raise ApiError 403 for what a browser sends for a page of another origin, or of a name made to lead here.

        Without API keys, this keeps web pages from using the gateway of the machine on which they are shown.
        """
        headers, listed = request.headers, self._settings.cors_origins
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if re.search(r":[0-9]*$", host) else host
        if host and not is_loopback(name) and name.strip("[]") != self._settings.host:
            raise _foreign(
                f"the gateway has no API keys, so it answers no requests to the host {host[:100]!r}; send them to"
                " 127.0.0.1 or localhost, or create a key with `inflight key add NAME`"
            )
        origin = headers.get("origin")
        if origin in listed or "*" in listed:
            return
        if origin is not None and origin.partition("://")[2] != host:
            raise _foreign(
                f"pages of {origin[:100]!r} may not call this gateway; start it with --cors-origin {origin[:100]}"
            )
        navigates = headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and origin is None and not navigates:
            raise _foreign("pages of other origins may not call this gateway; start it with --cors-origin ORIGIN")

    def allow_pages(self, request: Request) -> None:
        """Let pages of the named origins call the gateway from a browser."""
        origin, asked = request.headers.get("origin"), request.headers.get("access-control-request-headers", "")
        if origin and (origin in self._settings.cors_origins or "*" in self._settings.cors_origins):
            request.response_headers |= {
                "access-control-allow-origin": origin,
                "access-control-allow-headers": asked
                if _HEADER_NAMES.fullmatch(asked)
                else "authorization, content-type",
                "access-control-allow-methods": "GET, POST, DELETE",
                "access-control-expose-headers": _EXPOSED_HEADERS,
                "vary": "origin",
            }


def _foreign(message: str) -> ApiError:
    return ApiError(message, "permission_denied", status=403)
