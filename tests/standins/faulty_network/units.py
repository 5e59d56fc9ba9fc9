"""A stand-in for proxies that lose or double whole units of a protocol: HTTP/2's DATA frames, HTTP/1.1's messages.

HTTP/2 is taken without the client's preface, HTTP/1.1 as messages one behind the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, Protocol

UnitName = Literal["frame", "chunk", "message"]
"""A DATA frame with bytes; a chunk with bytes; an HTTP/1.1 message with a Content-Length."""

_FRAME_HEAD = 9
_DATA = 0
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)


class Splitter(Protocol):
    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """The bytes as far as they are whole units or something else: whether it is a unit, and the bytes."""


class Frames:
    """HTTP/2: a head of nine bytes (three of them the length, one the type), then the payload (RFC 9113, 4.1)."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        self._held += data
        while len(self._held) >= _FRAME_HEAD:
            payload = int.from_bytes(self._held[:3], "big")
            if len(self._held) < _FRAME_HEAD + payload:
                return
            frame, self._held = self._held[: _FRAME_HEAD + payload], self._held[_FRAME_HEAD + payload :]
            yield frame[3] == _DATA and payload > 0, frame


class Chunks:
    """HTTP/1.1: heads, bodies of a known length, and chunks, which are a line with the size and that many bytes."""

    def __init__(self, unit: UnitName) -> None:
        self._unit = unit
        self._held = b""
        self._next = self._head

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        self._held += data
        while (size := self._next()) is not None:
            unit, length = size
            found, self._held = self._held[:length], self._held[length:]
            yield unit == self._unit, found

    def _head(self) -> tuple[UnitName | None, int] | None:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = self._held[: end + 2]
        if _CHUNKED.search(head):
            self._next = self._chunk
            return None, end + 4
        length = _LENGTH.search(head)
        whole = end + 4 + (int(length[1]) if length else 0)
        return ("message", whole) if len(self._held) >= whole else None

    def _chunk(self) -> tuple[UnitName | None, int] | None:
        line = self._held.find(b"\r\n")
        if line < 0:
            return None
        payload = int(self._held[:line].split(b";")[0], 16)
        whole = line + 2 + payload + 2
        if len(self._held) < whole:
            return None
        if not payload:
            self._next = self._head
        return "chunk" if payload else None, whole


def splitter(unit: UnitName) -> Splitter:
    return Frames() if unit == "frame" else Chunks(unit)
