"""Parses a Triton server's HTTP responses other than inference: metadata and error statuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inflight_client._http.messages import EventParser, json_object, json_value
from inflight_client.error_mapping import (
    code_from_message,
    connection_lost,
    error_from_message,
    exception_message,
    not_triton,
)
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import ModelMetadata, ServerMetadata

_BY_STATUS = {
    401: "permission_denied",
    403: "permission_denied",
    407: "permission_denied",
    408: "deadline_exceeded",
    413: "prompt_too_long",
    429: "overloaded",
    503: "model_not_ready",
    504: "deadline_exceeded",
    529: "overloaded",
}
_GATEWAYS = (502, 503)
"""Statuses of a proxy whose server is unreachable."""

NO_ENDPOINT = (404, 405)
"""Statuses of servers without such a path, such as Triton's metrics port; for an unknown model Triton also sends a
message."""

_NOT_READY = (400, 503)
"""Triton's statuses if it is not ready; the first one comes without a body."""


def is_ready(status: int, error: InflightError) -> bool:
    """Return the result of a health check; raise `error`, the response's, if its status is neither yes nor no."""
    if status in (200, *_NOT_READY):
        return status == 200
    if error.code in ("model_not_ready", "model_not_found"):
        return False
    raise error


def status_error(status: int, content_type: str, body: bytes, where: str) -> InflightError:
    """Return the error for a response's status, with the server's message if there is one."""
    words = _message(content_type, body)
    if words and code_from_message(words):
        return error_from_message(words)
    if status in _GATEWAYS and not words:
        return connection_lost(where, f"HTTP status {status}")
    if status in NO_ENDPOINT and b'"invalid_request_error"' in body:
        return InflightError(
            f"the server at {where} has OpenAI's API; give the address with /v1 at its end", "unsupported_deployment"
        )
    if status in NO_ENDPOINT:
        return InflightError(
            f"the peer at {where} is not Triton's HTTP endpoint ({words or f'HTTP status {status}'}); check the port,"
            " and the path that a proxy expects before /v2",
            "unsupported_deployment",
        )
    if status < 300:
        return not_triton(where, f"HTTP status {status}")
    if status < 400:
        return InflightError(
            f"the server at {where} redirects (HTTP status {status}), which the client does not follow; use its target",
            "invalid_parameter",
        )
    if status >= 500 and not words and status not in _BY_STATUS:
        return connection_lost(where, f"HTTP status {status}")
    detail = f": {words}" if words else ""
    return InflightError(f"the server at {where} answered with HTTP status {status}{detail}", code_by_status(status))


def code_by_status(status: int) -> str:
    """Return the code for an error status whose message has none."""
    return _BY_STATUS.get(status, "invalid_request")


def json_body(status: int, content_type: str, body: bytes, where: str) -> bytes:
    """Return the body of a JSON response. Raises InflightError for an error status and for other content."""
    if status != 200:
        raise status_error(status, content_type, body, where)
    if not (content_type.startswith("application/json") or body.lstrip().startswith((b"{", b"["))):
        raise not_triton(where, f"it sends {content_type or 'no type'!r} instead of JSON")
    return body


def _message(content_type: str, body: bytes) -> str:
    """Return the message in `{"error": ...}`, sent as JSON or as an event; empty if it is missing."""
    try:
        if content_type.startswith("text/event-stream"):
            events = EventParser().feed(body)
            body = events[0] if events else b""
        error = json_object(body).get("error", "")
    except InflightError:
        return ""
    return exception_message(str(error))


def server_metadata(body: bytes) -> ServerMetadata:
    """Parse the server's metadata. Like the functions below, raises InflightError `answer_damaged` for invalid data."""
    document = json_object(body)
    try:
        return ServerMetadata(str(document["name"]), str(document["version"]))
    except KeyError as error:
        raise malformed("the server's metadata", f"it has no {error}") from None


def model_metadata(body: bytes, model: str) -> ModelMetadata:
    document = json_object(body)
    try:
        if document["name"] != model:
            raise ValueError(f"it is that of {document['name']}")
        versions = tuple(map(str, document.get("versions", ())))
        return ModelMetadata(model, _tensors(document["inputs"]), _tensors(document["outputs"]), versions)
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(f"the metadata of {model}", str(error)) from None


def _tensors(listed: Iterable[Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        str(tensor["name"]): (str(tensor["datatype"]), tuple(int(size) for size in tensor["shape"]))
        for tensor in listed
    }


def model_config(body: bytes, model: str) -> dict[str, Any]:
    document = json_object(body)
    if document.get("name") != model:
        raise malformed(f"the configuration of {model}", f"it is that of {document.get('name')}")
    return document


def repository_index(body: bytes) -> list[Model]:
    listed = json_value(body)
    try:
        return [
            Model(str(entry["name"]), *(str(entry.get(key, "")) for key in ("version", "state", "reason")))
            for entry in listed
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise malformed("the list of models", str(error)) from None


def malformed(what: str, how: str) -> InflightError:
    return InflightError(f"the server's answer can't be read as {what}: {how}; send it again", "answer_damaged")
