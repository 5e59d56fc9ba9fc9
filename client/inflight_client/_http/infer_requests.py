"""Inference requests over HTTP: what differs between the protocols and between streamed and whole answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import httpcore2

from inflight_client._http import channel
from inflight_client._http.messages import (
    EventParser,
    HttpResponse,
    damaged,
    generate_body,
    generate_path,
    json_object,
    model_path,
    response_from_event,
    response_from_values,
)
from inflight_client.tensor_bytes import bytes_to_array, bytes_to_texts, tensor_to_bytes
from inflight_client.transport import InferRequest

_HEADER_LENGTH = "inference-header-content-length"
"""The length of the JSON before the tensors' bytes."""


class AnswerParser(Protocol):
    """Splits the body of an answer into its parts: events, or the whole body."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Add bytes; return the parts that they complete. Raises InflightError if one is too long."""

    def end(self, where: str) -> list[bytes]:
        """Return the parts that the end completes. Raises InflightError `answer_damaged` if one is incomplete."""


class HttpInferRequest(Protocol):
    """An inference request; one object for each time it is sent."""

    id: str
    """The id of the last response's output `id`, by which a whole answer is recognized; may be empty."""
    path: str
    body: bytes
    headers: Mapping[str, str]
    parser: AnswerParser

    def begin(self, response: httpcore2.Response, where: str) -> None:
        """Read the head of a response with status 200. Raises InflightError for a form that can't be read."""

    def parse_event(self, data: bytes) -> HttpResponse | None:
        """Return the response of a part of the answer; None if it has none. Raises InflightError."""


class StreamedRequest:
    """The base of requests that are answered with server-sent events."""

    def __init__(self) -> None:
        self.parser: AnswerParser = EventParser()

    def begin(self, response: httpcore2.Response, where: str) -> None:
        channel.check_stream(response, where)


class BodyParser:
    """Collects a whole body, the only part of its answer."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > channel.MAX_BODY_BYTES:
            raise damaged(f"it has more than {channel.MAX_BODY_BYTES} bytes")
        return []

    def end(self, where: str) -> list[bytes]:
        pieces, self._pieces = self._pieces, []
        return [b"".join(pieces)] if pieces else []


class GenerateRequest(StreamedRequest):
    """A request of the generate extension."""

    def __init__(self, request: InferRequest) -> None:
        super().__init__()
        self.id = request.id
        self.path = generate_path(request.model)
        self.body = generate_body(request)
        self.headers = request.headers

    def parse_event(self, data: bytes) -> HttpResponse | None:
        return response_from_event(data, self.id)


class BinaryRequest:
    """A request whose answer is one response, with tensors as bytes after the JSON.

    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
    """

    def __init__(self, request: InferRequest) -> None:
        self.id = request.id
        self.path = f"{model_path(request.model)}/infer"
        self.parser: AnswerParser = BodyParser()
        contents = {name: tensor_to_bytes(name, tensor) for name, tensor in request.inputs.items()}
        document: dict[str, Any] = {
            "id": request.id,
            "inputs": [
                {
                    "name": name,
                    "shape": tensor.shape,
                    "datatype": tensor.datatype,
                    "parameters": {"binary_data_size": len(contents[name])},
                }
                for name, tensor in request.inputs.items()
            ],
            "parameters": dict(request.parameters),
        }
        if request.outputs:
            document["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
        else:  # all that there are
            document["parameters"]["binary_data_output"] = True
        head = json.dumps(document, separators=(",", ":")).encode()
        self.body = b"".join((head, *contents.values()))
        self.headers: Mapping[str, str] = {
            **request.headers,
            "content-type": "application/octet-stream",
            _HEADER_LENGTH: str(len(head)),
        }
        self._head_length: int | None = None

    def begin(self, response: httpcore2.Response, where: str) -> None:
        length = channel.header(response, _HEADER_LENGTH.encode())
        self._head_length = int(length) if length.isdigit() else None

    def parse_event(self, data: bytes) -> HttpResponse | None:
        end = len(data) if self._head_length is None else self._head_length
        document = json_object(data[:end])
        values: dict[str, Any] = {"id": document.get("id", "")}
        try:
            for output in document["outputs"]:
                name, datatype, shape = output["name"], output["datatype"], output["shape"]
                size = output.get("parameters", {})["binary_data_size"]
                raw, end = data[end : end + size], end + size
                if datatype == "BYTES":
                    values[name] = bytes_to_texts(name, raw)
                else:
                    values[name] = bytes_to_array(name, datatype, shape, raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(f"{type(error).__name__}: {error}") from None
        return response_from_values(values, self.id)
