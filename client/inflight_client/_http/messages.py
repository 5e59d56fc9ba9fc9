"""Messages of Triton's generate extension: requests as JSON, responses as server-sent events.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from inflight_client.error_mapping import error_from_message, mismatched_response
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest, Tensor

if TYPE_CHECKING:
    from inflight_client.transport import Array

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Maximum size of an event. One token takes some hundred bytes; a whole answer takes more."""

_FLOATS = {"FP16": "<e", "FP32": "<f", "FP64": "<d"}


def model_path(model: str) -> str:
    """Return the path of a model's metadata."""
    return f"/v2/models/{quote(model, safe='')}"


def generate_path(model: str) -> str:
    """Return the path for requests. Triton streams the model's responses from there, one or many."""
    return f"{model_path(model)}/generate_stream"


def generate_body(request: InferRequest) -> bytes:
    """Return the request as JSON: inputs by name, `id` and `parameters`.

    Triton takes shapes from the model's metadata and assigns all values to the innermost variable dimension.
    Raises InflightError for a request without such a form: a shape that must be explicit, text that is not Unicode.
    """
    document: dict[str, Any] = {name: _value(name, tensor) for name, tensor in request.inputs.items()}
    if request.id:
        document["id"] = request.id
    if request.parameters:
        document["parameters"] = dict(request.parameters)
    try:
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise InflightError(f"the request can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
    except ValueError:
        raise InflightError("the request has NaN or infinity, which JSON does not have", "invalid_parameter") from None


def _value(name: str, tensor: Tensor) -> Any:
    if sum(size != 1 for size in tensor.shape) > 1:
        raise InflightError(
            f"{name} has the shape {list(tensor.shape)}, which Triton's generate endpoint does not accept; use gRPC",
            "unsupported_input",
        )
    values = [_exact(tensor.datatype, value) for value in tensor.values]
    return values[0] if len(values) == 1 else values


def _exact(datatype: str, value: Any) -> Any:
    """Return the value for JSON, rounded to the tensor's type.

    Floats are rounded here, so that the result does not depend on the rounding of Triton's JSON parser.
    """
    if datatype in _FLOATS:
        kind = _FLOATS[datatype]
        return struct.unpack(kind, struct.pack(kind, value))[0]
    if datatype == "BYTES":
        return str(value)
    return bool(value) if datatype == "BOOL" else int(value)


class EventParser:
    """Parses server-sent events from bytes that arrive in pieces of any size.

    https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end in CR, LF or both, an empty line ends an
    event, comments and fields other than `data` are ignored. Text after the last empty line is not an event.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line: list[bytes] = []
        """The pieces of an incomplete line."""
        self._data: list[bytes] = []
        self._held = 0
        """Bytes in both."""
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Add bytes; return the data of the events that they complete. Raises InflightError if one is too long."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        events: list[bytes] = []
        for line in piece.splitlines(keepends=True):
            if not line.endswith((b"\n", b"\r")):
                self._hold(self._line, line)
            elif (event := self._end(line.rstrip(b"\r\n"))) is not None:
                events.append(event)
        return events

    @property
    def complete(self) -> bool:
        """Whether the bytes so far end at an event's end."""
        return not (self._line or self._data)

    def end(self, where: str) -> list[bytes]:
        """Return no event. Raises InflightError `answer_damaged` if the bytes end within one; `where` is the server."""
        if not self.complete:
            raise InflightError(f"the answer from {where} ended early; send the request again", "answer_damaged")
        return []

    def _end(self, line: bytes) -> bytes | None:
        """Add the end of a line; return the event that it completes, if any."""
        if self._line:
            self._line.append(line)
            line = b"".join(self._line)
            self._held -= len(line) - len(self._line.pop())
            self._line.clear()
        if line:
            if line.startswith(b"data:"):
                self._hold(self._data, line[6:] if line.startswith(b"data: ") else line[5:])
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        self._held = 0
        return event

    def _hold(self, where: list[bytes], piece: bytes) -> None:
        where.append(piece)
        self._held += len(piece)
        if self._held > self._max:
            raise InflightError(
                f"the server sent an event of more than {self._max} bytes; send the request again", "answer_damaged"
            )


class HttpResponse:
    """The outputs of one event. Triton writes a tensor of one element as a value, others as a flat list.

    Of a whole answer the outputs are tuples of strings and numpy arrays.
    """

    __slots__ = ("_values",)

    final = None
    """Events do not mark the last response."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    @property
    def id(self) -> str:
        return str(self._values.get("id", ""))

    def text(self, name: str) -> str | None:
        values = self._all(name, (str,), "text")
        if not values:
            return None
        value: str = values[0]
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise damaged(f"its {name} is not Unicode text") from None
        return value

    def integer(self, name: str) -> int | None:
        values = self.integers(name)
        return values[0] if values else None

    def integers(self, name: str) -> tuple[int, ...] | None:
        values = self._all(name, (int,), "a whole number")
        return None if values is None else tuple(values)

    def numbers(self, name: str) -> tuple[float, ...] | None:
        values = self._all(name, (int, float), "a number")
        return None if values is None else tuple(map(float, values))

    def texts(self, name: str, limit: int | None = None) -> tuple[str, ...] | None:
        values = self._values.get(name)
        return None if values is None else tuple(values[:limit])

    def array(self, name: str) -> Array | None:
        values: Array | None = self._values.get(name)
        return values

    def _all(self, name: str, types: tuple[type, ...], what: str) -> Sequence[Any] | None:
        found = self._values.get(name)
        if found is None:
            return None
        values: Sequence[Any] = found if isinstance(found, list | tuple) else (found,)
        for value in values:
            if type(value) not in types:
                raise damaged(f"its {name} has {value!r:.60}, which is not {what}")
        return values


def response_from_event(data: bytes, request_id: str) -> HttpResponse:
    """Return an event's response. Raises InflightError: the server's error, or `answer_damaged` for invalid data."""
    values = json_object(data)
    if "error" in values:
        raise error_from_message(str(values["error"]))
    return response_from_values(values, request_id)


def response_from_values(values: Mapping[str, Any], request_id: str) -> HttpResponse:
    """Return the response. Raises InflightError `answer_damaged` if it belongs to another request."""
    response_id = values.get("id")
    if request_id and response_id is not None and response_id != request_id:
        raise mismatched_response(request_id, str(response_id)[:128])
    return HttpResponse(values)


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises InflightError `answer_damaged` for anything else."""
    values = json_value(data)
    if not isinstance(values, dict):
        raise damaged("it is JSON, but not an object")
    return values


def json_value(data: bytes) -> Any:
    """Parse JSON. Raises InflightError `answer_damaged` for anything else."""
    try:
        return json.loads(data.decode())
    except UnicodeDecodeError:
        raise damaged("it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise damaged("it is no JSON") from None


def damaged(how: str) -> InflightError:
    return InflightError(f"the server's answer can't be read: {how}; send the request again", "answer_damaged")
