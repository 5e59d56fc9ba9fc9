"""Rows of JSON lines: one object per line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import InputRecord, Position
from inflight.batch.job.spec import FileFormat
from inflight.batch.sources.file_source import MAX_ROW_BYTES, FileSource, offset_of, skip_line
from inflight.batch.storage.files import StoredFile
from inflight.common.repeated import first_repeated

_KEYS = re.compile(rb'"[ \t\r]*:')
"""The end of a key; it may also occur in texts, so a line contains it at least as often as it has keys."""
# orjson reads 1,024 levels and writes 254; Python's recursion limit depends on the caller.
_MAX_DEPTH = 500
_HEAD = 4096
_BOM = b"\xef\xbb\xbf"


class JsonLinesSource(FileSource):
    """A file of JSON lines. An error in a line affects only that line."""

    format: FileFormat = "jsonl"

    def __init__(self, file: StoredFile) -> None:
        super().__init__(file)
        if file.suffix == ".json":
            with file.reading() as reading:
                head = reading.content.read(_HEAD).removeprefix(_BOM).lstrip()
            if head.startswith(b"["):
                raise BatchError(
                    f"{file.shown} is a single JSON list; convert it to JSON lines, one object per line, with `jq -c "
                    f"'.[]'`",
                    "input_invalid",
                )

        with file.reading() as reading:
            while (raw := reading.content.readline(MAX_ROW_BYTES)).isspace():
                pass
        if not raw:
            raise BatchError(f"{file.shown} has only blank lines; it needs at least one row", "input_invalid")

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[InputRecord]:
        offset, line = offset_of(after)
        with self._file.reading(offset) as reading:
            file = reading.content
            while raw := file.readline(MAX_ROW_BYTES + 1):
                line += 1
                start, offset = offset, offset + len(raw)
                if raw.isspace():
                    continue
                if len(raw) > MAX_ROW_BYTES and not raw.endswith(b"\n"):
                    offset += skip_line(file)
                    values: dict[str, Any] | str = f"the line is longer than {MAX_ROW_BYTES >> 20} MiB"
                else:
                    values = parse_line(raw if start else raw.removeprefix(_BOM))
                if offset >= self._next_offset_record:
                    self._record_offset(reading, offset)
                if isinstance(values, str):
                    yield InputRecord(line, None, (offset, line), values)
                else:
                    yield InputRecord(line, values, (offset, line))


def parse_line(raw: bytes) -> dict[str, Any] | str:
    """Return the object in a line, or a sentence with what is wrong."""
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return _why(raw, error)
    if not isinstance(values, dict):
        return f"the line is {_KINDS.get(type(values), 'null')}; it must be an object, {{...}}"
    try:
        if len(_KEYS.findall(raw)) != _keys(values) and (twice := _twice(raw)):
            return f"the line names {twice[:80]!r} twice in one object"
    except RecursionError:
        return "the line is nested too deep"
    return values


_KINDS: dict[type, str] = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}


def _why(raw: bytes, error: orjson.JSONDecodeError) -> str:
    if b"\0" in raw:
        return "the line contains a NUL byte, which JSON does not allow"
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return f"the line is not UTF-8: {wrong.reason} at byte {wrong.start + 1}"
    if b"\r" in raw.rstrip():
        return "the line has carriage returns in it; if these are meant as line ends, convert them to line feeds"
    if not raw.endswith(b"\n") and "end of data" in error.msg:
        return "the last line is truncated: the JSON is incomplete"
    return f"the line is not JSON: {error.msg} at character {error.colno}"


def _keys(value: Any, levels: int = _MAX_DEPTH) -> int:
    """Return the number of keys in an object and all objects in it. Raises RecursionError beyond `levels`."""
    if not levels:
        raise RecursionError
    if type(value) is dict:
        count = len(value)
        value = value.values()
    elif type(value) is list:
        count = 0
    else:
        return 0
    for each in value:
        if type(each) is dict or type(each) is list:
            count += _keys(each, levels - 1)
    return count


def _twice(raw: bytes) -> str | None:
    """Return a key that an object of the line has twice: JSON parsers keep the last one and silently drop the other."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        if (name := first_repeated(name for name, _ in pairs)) is not None:
            repeated.append(name)

    json.loads(raw, object_pairs_hook=look)
    return repeated[0] if repeated else None
