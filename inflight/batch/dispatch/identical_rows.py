"""Computes identical rows once: copies of a row wait for its answer, or get it from those of the last rows."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from inflight_client import InflightError
from inflight_client.encodings import Embeddings
from inflight_client.results import Generation

from inflight.batch.dispatch.row_queue import Feed, OnRowDone
from inflight.batch.job.rows import Completion, GenerateRequest, Refinement, Row, RowAnswer, RowRequest

MAX_WAITING = 10_000
"""Copies that wait for an answer; beyond that, no further rows are read until one is there."""
_MAX_BYTES = 64 << 20
"""Approximate size of the answers that later copies may get."""
_IGNORED = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""Fields of a body that do not change its answer."""


def request_key(request: RowRequest) -> bytes | None:
    """Return the same value for requests with the same answer; None for a request whose answer is another each time."""
    values: Any = request
    if isinstance(request, GenerateRequest):
        if not request.repeatable:
            return None
        if request.body is not None:
            values = {name: value for name, value in request.body.items() if name not in _IGNORED}
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    try:
        text = orjson.dumps([type(request).__name__, values], _plain, options)
    except orjson.JSONEncodeError:  # halves of characters, or huge numbers
        return None
    return hashlib.blake2b(text, digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


@dataclass
class _Known:
    """Answers by key, the last ones that fit in memory."""

    answers: OrderedDict[bytes, tuple[RowAnswer, Refinement | None]] = field(default_factory=OrderedDict)
    size: int = 0

    def add(self, key: bytes, answer: RowAnswer, refinement: Refinement | None) -> None:
        self.answers[key] = answer, refinement
        self.size += _size(answer)
        while self.size > _MAX_BYTES:
            self.size -= _size(self.answers.popitem(last=False)[1][0])


def _size(answer: RowAnswer) -> int:
    if isinstance(answer, Generation):
        return 500 + 2 * len(answer.text) + 40 * len(answer.log_probs or ())
    if isinstance(answer, Completion):
        return 500 + len(str(answer.choices))
    return 500 + (int(answer.vectors.nbytes) if isinstance(answer, Embeddings) else 0)


class IdenticalRows:
    """Between a feed and the queue, whose feed this is, and between the queue's results and `on_row_done`.

    `on_copy` is called with each copy, and the result of the row that was sent in its place. What is said of the
    refinement of that row is so of the copy.
    """

    def __init__(
        self, feed: Feed, on_row_done: OnRowDone, on_copy: Callable[[Row, RowAnswer | InflightError], None]
    ) -> None:
        self._feed, self._on_row_done, self._on_copy = feed, on_row_done, on_copy
        self._keys: dict[int, bytes] = {}
        """Keys of the rows that were sent, by number."""
        self._copies: dict[bytes, list[Row]] = {}
        self._waiting = 0
        self._space = asyncio.Event()
        self._known = _Known()

    async def get(self) -> Row | None:
        """Return the next row that no other answers; None at the end."""
        while (row := await self._feed.get()) is not None:
            key = request_key(row.request)
            if key is None:
                return row
            if key in self._known.answers:
                answer, refinement = self._known.answers[key]
                self._on_copy(replace(row, refinement=refinement), answer)
            elif key in self._copies:
                self._copies[key].append(row)
                self._waiting += 1
                while self._waiting >= MAX_WAITING:
                    self._space.clear()
                    await self._space.wait()
            else:
                self._keys[row.number], self._copies[key] = key, []
                return row
        return None

    def on_row_done(self, row: Row, result: RowAnswer | InflightError, attempts: int) -> None:
        """Finish a row and its copies. A failure is not remembered: a later copy is tried again."""
        self._on_row_done(row, result, attempts)
        if (key := self._keys.pop(row.number, None)) is None:
            return
        copies = self._copies.pop(key)
        if not isinstance(result, InflightError):
            self._known.add(key, result, row.refinement)
        for copy in copies:
            self._on_copy(replace(copy, refinement=row.refinement), result)
        self._waiting -= len(copies)
        self._space.set()
