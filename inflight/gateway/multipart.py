"""Reads multipart/form-data piece by piece: fields, and one file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Generic, Protocol, TypeVar

from inflight.gateway.http import Request
from inflight.openai_api.errors import ApiError

_MAX_PARTS = 64
_MAX_HEADER_BYTES = 8 * 1024
_MAX_FIELD_BYTES = 64 * 1024


class Sink(Protocol):
    """Takes the content of the file."""

    def write(self, data: bytes, /) -> object: ...


File = TypeVar("File", bound=Sink)


class Form(Generic[File]):
    """The parts of a form, in any order. Only a field whose name ends with [] may come several times."""

    def __init__(self, names: Collection[str], begin: Callable[[str, Mapping[str, list[str]]], File]) -> None:
        """`begin` opens the file of a name; the fields are those that came before it."""
        self.fields: dict[str, list[str]] = {}
        self.file: File | None = None
        self._names, self._begin = names, begin
        self._name = self._header_name = self._header_value = b""
        self._filename: str | None = None
        self._held: list[bytes] = []
        self._size = self._parts = 0
        self._ended = False

    async def read(self, request: Request, call: Callable[..., Awaitable[Any]]) -> None:
        """Read the body; `call` runs in a thread what writes to the file. Raises ApiError."""
        try:
            await self._read(request, call)
        except ApiError:
            await request.discard()
            raise

    async def _read(self, request: Request, call: Callable[..., Awaitable[Any]]) -> None:
        from python_multipart.multipart import MultipartParser, parse_options_header

        kind, options = parse_options_header(request.headers.get("content-type", ""))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise ApiError("send the file as multipart/form-data", "invalid_request")
        try:
            parser = MultipartParser(boundary, self._callbacks())
            parser.logger.disabled = True  # the response says what is wrong
            async for part in request.chunks():
                await call(parser.write, part)
            await call(parser.finalize)
            if not self._ended:
                raise ValueError("its end is missing")
        except (ValueError, RuntimeError) as error:
            raise ApiError(f"the form is damaged: {str(error)[:100]}", "invalid_request") from None

    def whole_file(self) -> File:
        """Return the file. Raises ApiError if there is none."""
        if self.file is None:
            raise ApiError("the form has no file; send it in the field file", "invalid_request", "file")
        return self.file

    def _callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": self._header_field,
            "on_header_value": self._header_part,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ApiError(f"the form has more than {_MAX_PARTS} parts", "invalid_request")
        self._name, self._filename, self._held, self._size = b"", None, [], 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name = self._longer(self._header_name, data[start:end])

    def _header_part(self, data: bytes, start: int, end: int) -> None:
        self._header_value = self._longer(self._header_value, data[start:end])

    def _end_header(self) -> None:
        from python_multipart.multipart import parse_options_header

        if self._header_name.lower() == b"content-disposition":
            _, options = parse_options_header(self._header_value)
            self._name = options.get(b"name", b"")
            name = self._name.decode("utf-8", "replace")
            if name not in self._names:
                raise ApiError(f"the field {name[:80]!r} is unknown; leave it out", "unsupported_input", name[:80])
            if (name in self.fields and not name.endswith("[]")) or (name == "file" and self.file is not None):
                raise ApiError(f"the form has {name} twice; send it once", "invalid_request", name)
            if b"filename" in options:
                self._filename = options[b"filename"].decode("utf-8", "replace")
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        if not self._name:
            raise ApiError("a part of the form has no name; give each a name", "invalid_request")

    def _longer(self, header: bytes, more: bytes) -> bytes:
        if len(header) + len(more) > _MAX_HEADER_BYTES:
            raise ApiError("a header of the form is too long", "invalid_request")
        return header + more

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = data[start:end]
        if self._name == b"file":
            self._open().write(part)
            return
        self._size += len(part)
        if self._size > _MAX_FIELD_BYTES:
            raise ApiError("a field of the form is too long", "invalid_request")
        self._held.append(part)

    def _end_part(self) -> None:
        if self._name == b"file":
            self._open()
        else:
            value = b"".join(self._held).decode("utf-8", "replace")
            self.fields.setdefault(self._name.decode("utf-8", "replace"), []).append(value)

    def _end(self) -> None:
        self._ended = True

    def _open(self) -> File:
        if self.file is None:
            self.file = self._begin(self._filename or "upload", self.fields)
        return self.file
