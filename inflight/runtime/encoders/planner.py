"""Plans micro-batches of texts of similar lengths, by a budget of padded tokens.

The planner knows neither an engine nor Triton. It plans one micro-batch at a time from all waiting texts, so that an
urgent text waits for one micro-batch at most before it is considered.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

_FINE_STEP = 16
_FINE_LIMIT = 128
_COARSE_STEP = 64
_MAX_PADDING = 1 / 16
"""Padding of a micro-batch, as a fraction of its padded tokens, up to which shorter texts join in any case."""
_MIN_FILL = 1 / 8
"""A micro-batch with less of the budget accepts texts of the neighbouring length classes, with more padding."""

Item = TypeVar("Item")


def length_class(tokens: int) -> int:
    """Return the upper bound of a length's class: multiples of 16 up to 128, then of 64."""
    step = _FINE_STEP if tokens <= _FINE_LIMIT else _COARSE_STEP
    return max(-(-tokens // step) * step, step)


@dataclass(frozen=True)
class PlannerLimits:
    """Limits of a micro-batch: texts, and padded tokens (texts times the longest); a longer text is alone.

    A text that has waited for `max_wait_s` goes before others, whatever their priorities.
    """

    max_batch_tokens: int
    max_batch_texts: int
    max_wait_s: float


@dataclass(eq=False)
class WaitingText(Generic[Item]):
    """A text in the planner: its item, its number of tokens, its priority (higher first), and its arrival in seconds.

    `waiting` is false once the text was planned or dropped.
    """

    item: Item
    tokens: int
    priority: int
    arrival: float
    number: int = 0
    waiting: bool = field(default=False, repr=False)

    def __lt__(self, other: WaitingText[Item]) -> bool:
        return (-self.priority, self.number) < (-other.priority, other.number)


class Planner(Generic[Item]):
    """The waiting texts. Adding, planning and dropping take a time that hardly depends on how many texts wait.

    The anchor of a micro-batch is the oldest text if that is overdue, else the oldest of the highest priority. Texts
    of the same length or the next shorter ones join it, up to the budget. While the micro-batch is less than an eighth
    full, also those join that are up to one length class shorter or longer. If all texts are overdue, priorities would
    have no effect; so a text of a higher priority goes after each micro-batch with an overdue anchor.
    """

    def __init__(self, limits: PlannerLimits) -> None:
        self._limits = limits
        self._numbers = count()
        self._waiting = 0
        # Each text is in three queues. It is removed from one when it is planned, and skipped later in the others.
        self._by_arrival: deque[WaitingText[Item]] = deque()
        self._by_priority: list[WaitingText[Item]] = []
        self._by_length: dict[int, list[WaitingText[Item]]] = {}
        self._lengths: list[int] = []
        self._last_was_overdue = False

    def __len__(self) -> int:
        return self._waiting

    def add(self, text: WaitingText[Item]) -> None:
        text.number, text.waiting = next(self._numbers), True
        self._waiting += 1
        self._by_arrival.append(text)
        heapq.heappush(self._by_priority, text)
        queue = self._by_length.get(text.tokens)
        if queue is None:
            queue = self._by_length[text.tokens] = []
            insort(self._lengths, text.tokens)
        heapq.heappush(queue, text)

    def drop(self, text: WaitingText[Item]) -> bool:
        """Forget a text; return false if it is not waiting."""
        was, text.waiting = text.waiting, False
        self._waiting -= was
        self._compact()
        return was

    def oldest_arrival(self) -> float | None:
        """Return when the text that has waited longest arrived."""
        oldest = self._oldest()
        return None if oldest is None else oldest.arrival

    def next_batch(self, now: float) -> list[WaitingText[Item]]:
        """Remove and return the texts of the next micro-batch; [] if none wait."""
        anchor = self._anchor(now)
        if anchor is None:
            return []
        batch = self._fill(anchor)
        self._compact()
        return batch

    def _anchor(self, now: float) -> WaitingText[Item] | None:
        oldest = self._oldest()
        if oldest is None:
            return None
        while not self._by_priority[0].waiting:
            heapq.heappop(self._by_priority)
        urgent = self._by_priority[0]
        overdue = now - oldest.arrival >= self._limits.max_wait_s
        if overdue and self._last_was_overdue and urgent.priority > oldest.priority:
            overdue = False
        self._last_was_overdue = overdue
        return oldest if overdue else urgent

    def _oldest(self) -> WaitingText[Item] | None:
        while self._by_arrival and not self._by_arrival[0].waiting:
            self._by_arrival.popleft()
        return self._by_arrival[0] if self._by_arrival else None

    def _fill(self, anchor: WaitingText[Item]) -> list[WaitingText[Item]]:
        self._take(anchor)
        batch, longest, real = [anchor], anchor.tokens, anchor.tokens
        lowest = longest - _class_width(longest)
        highest = longest + _class_width(longest + 1)
        for text in self._shorter(longest):
            padded = (len(batch) + 1) * longest
            if not self._fits(len(batch) + 1, longest):
                break
            padding = padded - real - text.tokens
            filled = len(batch) * longest >= self._limits.max_batch_tokens * _MIN_FILL
            if padding > padded * _MAX_PADDING and (filled or text.tokens < lowest):
                break
            self._take(text)
            batch.append(text)
            real += text.tokens
        for text in self._longer(longest, highest):
            filled = len(batch) * longest >= self._limits.max_batch_tokens * _MIN_FILL
            if filled or not self._fits(len(batch) + 1, text.tokens):
                break
            self._take(text)
            batch.append(text)
            longest = text.tokens
        return batch

    def _fits(self, texts: int, longest: int) -> bool:
        return texts <= self._limits.max_batch_texts and texts * longest <= self._limits.max_batch_tokens

    def _take(self, text: WaitingText[Item]) -> None:
        text.waiting = False
        self._waiting -= 1

    def _shorter(self, longest: int) -> Iterator[WaitingText[Item]]:
        """Yield the waiting texts of at most this length: the longest first, each to be taken before the next."""
        position = bisect_left(self._lengths, longest + 1)
        while position:
            position -= 1
            yield from self._of_length(self._lengths[position])

    def _longer(self, longest: int, highest: int) -> Iterator[WaitingText[Item]]:
        """Yield the waiting texts that are longer, up to a length: the shortest first."""
        position = bisect_left(self._lengths, longest + 1)
        while position < len(self._lengths) and self._lengths[position] <= highest:
            length = self._lengths[position]
            yield from self._of_length(length)
            # Lengths without waiting texts have just been removed.
            position = bisect_left(self._lengths, length + 1)

    def _of_length(self, length: int) -> Iterator[WaitingText[Item]]:
        queue = self._by_length[length]
        while queue:
            if queue[0].waiting:
                yield queue[0]
            else:
                heapq.heappop(queue)
        del self._by_length[length]
        self._lengths.pop(bisect_left(self._lengths, length))

    def _compact(self) -> None:
        """Rebuild the queues once most of their texts are not waiting any more."""
        if max(len(self._by_priority), len(self._by_arrival)) <= 2 * self._waiting + 1024:
            return
        kept = [text for text in self._by_arrival if text.waiting]
        self._by_arrival, self._by_priority, self._by_length = deque(kept), list(kept), {}
        heapq.heapify(self._by_priority)
        for text in kept:
            self._by_length.setdefault(text.tokens, []).append(text)
        for queue in self._by_length.values():
            heapq.heapify(queue)
        self._lengths = sorted(self._by_length)


def _class_width(tokens: int) -> int:
    return _FINE_STEP if tokens <= _FINE_LIMIT else _COARSE_STEP
