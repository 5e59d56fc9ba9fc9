"""Requests that are answered with server-sent events: what differs between the protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from inflight_client._http.messages import HttpResponse, generate_body, generate_path, response_from_event
from inflight_client._http.responses import status_error
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest


class StreamedRequest(Protocol):
    """A request that is answered with server-sent events; one object for each time it is sent."""

    id: str
    """The id of the last response's output `id`, by which a whole answer is recognized; may be empty."""
    path: str
    body: bytes
    headers: Mapping[str, str]

    def parse_event(self, data: bytes) -> HttpResponse | None:
        """Return an event's response; None if it has none. Raises InflightError."""

    def error(self, status: int, content_type: str, retry_after: str, body: bytes, where: str) -> InflightError:
        """Return the error for a status other than 200; `retry_after` is the header's value, or empty."""


class GenerateRequest:
    """A request of the generate extension."""

    def __init__(self, request: InferRequest) -> None:
        self.id = request.id
        self.path = generate_path(request.model)
        self.body = generate_body(request)
        self.headers = request.headers

    def parse_event(self, data: bytes) -> HttpResponse | None:
        return response_from_event(data, self.id)

    def error(self, status: int, content_type: str, retry_after: str, body: bytes, where: str) -> InflightError:
        return status_error(status, content_type, body, where)
