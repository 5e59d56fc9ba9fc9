"""What a Triton server answers over HTTP beside inference: its metadata, and statuses that are errors."""

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
}
_GATEWAYS = (502, 503)
"""A proxy's own statuses where the server behind it is away."""

_NO_ENDPOINT = (404, 405)
"""Statuses of servers that have no such path, as Triton's metrics port; of a model Triton says in words that it has
none."""

_NOT_READY = (400, 503)
"""Triton's statuses where it is not ready, of which the first comes without a word."""


def is_ready(status: int, content_type: str, body: bytes, where: str) -> bool:
    """What a question for health was answered. Raises InflightError for what is neither yes nor no."""
    if status in (200, *_NOT_READY):
        return status == 200
    error = status_error(status, content_type, body, where)
    if error.code in ("model_not_ready", "model_not_found"):
        return False
    raise error


def status_error(status: int, content_type: str, body: bytes, where: str) -> InflightError:
    """What an answer with an error's status says: in the server's own words where there are any."""
    words = _message(content_type, body)
    if words and code_from_message(words):
        return error_from_message(words)
    if status in _GATEWAYS and not words:
        return connection_lost(where, f"HTTP status {status}")
    if status in _NO_ENDPOINT:
        return InflightError(
            f"what answers at {where} is no Triton server's HTTP endpoint ({words or f'HTTP status {status}'}); "
            "check the address: its port, and the path that a proxy wants before /v2",
            "unsupported_deployment",
        )
    if status < 300:
        return not_triton(where, f"HTTP status {status}")
    if status < 400:
        return InflightError(
            f"the server at {where} redirects (HTTP status {status}), which is not followed; give its target",
            "invalid_parameter",
        )
    if status >= 500 and not words and status not in _BY_STATUS:
        return connection_lost(where, f"HTTP status {status}")
    said = f": {words}" if words else ""
    code = _BY_STATUS.get(status, "invalid_request")
    return InflightError(f"the server at {where} answered with HTTP status {status}{said}", code)


def json_body(status: int, content_type: str, body: bytes, where: str) -> bytes:
    """An answer that is due as JSON. Raises InflightError for an error's, and for that of a server of other things."""
    if status != 200:
        raise status_error(status, content_type, body, where)
    if not (content_type.startswith("application/json") or body.lstrip().startswith((b"{", b"["))):
        raise not_triton(where, f"it sends {content_type or 'no type'!r} where JSON is due")
    return body


def _message(content_type: str, body: bytes) -> str:
    """The sentence in `{"error": ...}`, which may come as JSON, as an event, or not at all."""
    try:
        if content_type.startswith("text/event-stream"):
            events = EventParser().feed(body)
            body = events[0] if events else b""
        found = json_object(body).get("error", "")
    except InflightError:
        return ""
    return exception_message(str(found))


def server_metadata(body: bytes) -> ServerMetadata:
    """Raises InflightError `answer_damaged` for what is none; so do the others."""
    document = json_object(body)
    try:
        return ServerMetadata(str(document["name"]), str(document["version"]))
    except KeyError as error:
        raise _malformed("the server's metadata", f"it has no {error}") from None


def model_metadata(body: bytes, model: str) -> ModelMetadata:
    document = json_object(body)
    try:
        if document["name"] != model:
            raise ValueError(f"it is that of {document['name']}")
        versions = tuple(map(str, document.get("versions", ())))
        return ModelMetadata(model, _tensors(document["inputs"]), _tensors(document["outputs"]), versions)
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(f"the metadata of {model}", str(error)) from None


def _tensors(listed: Iterable[Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        str(tensor["name"]): (str(tensor["datatype"]), tuple(int(size) for size in tensor["shape"]))
        for tensor in listed
    }


def model_config(body: bytes, model: str) -> dict[str, Any]:
    document = json_object(body)
    if document.get("name") != model:
        raise _malformed(f"the configuration of {model}", f"it is that of {document.get('name')}")
    return document


def repository_index(body: bytes) -> list[Model]:
    listed = json_value(body)
    try:
        return [
            Model(str(entry["name"]), *(str(entry.get(key, "")) for key in ("version", "state", "reason")))
            for entry in listed
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed("the list of models", str(error)) from None


def _malformed(what: str, how: str) -> InflightError:
    return InflightError(f"the server's answer can't be read as {what}: {how}; send it again", "answer_damaged")
