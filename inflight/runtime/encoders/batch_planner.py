"""Plans micro-batches of texts of one group and of similar lengths, by a budget of padded tokens.

The planner knows neither an engine nor Triton. It plans one micro-batch at a time from all waiting texts, so that an
urgent text waits for one micro-batch at most before it is considered.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

_FINEST_STEP = 4
_STEPS = 32
_CLASS_STEPS = 4
"""A length class is as wide as this many steps of lengths."""
_MAX_PADDING = 1 / 16
"""Padding of a micro-batch, as a fraction of its padded tokens, up to which shorter texts join in any case."""
_MIN_FILL = 1 / 8
"""A micro-batch with less of the budget accepts texts of the neighbouring length classes, with more padding."""

Item = TypeVar("Item")


def padded_length(tokens: int, longest: int) -> int:
    """Return the length that a text is padded to: a multiple of 4 up to 128 tokens, of 8 up to 256, and so on.

    Engines keep kernels for each shape, so this bounds how many they make. `longest` is the engine's limit.
    """
    step = _length_step(tokens)
    return min(-(-tokens // step) * step, longest)


def _length_step(tokens: int) -> int:
    step = _FINEST_STEP
    while tokens > step * _STEPS:
        step *= 2
    return step


@dataclass(frozen=True)
class PlannerLimits:
    """Limits of a micro-batch: texts, and padded tokens (texts times the longest length); a longer text is alone.

    A text that has waited for `max_wait_s` goes before others, whatever their priorities.
    """

    max_batch_tokens: int
    max_batch_texts: int
    max_wait_s: float


@dataclass(eq=False)
class WaitingText(Generic[Item]):
    """A text in the planner: its item, its padded length, its priority (higher first), and its arrival in seconds.

    Only texts of the same `group` can share a micro-batch. `waiting` is false once the text was planned or dropped.
    """

    item: Item
    tokens: int
    priority: int
    arrival: float
    group: Hashable = None
    number: int = 0
    waiting: bool = field(default=False, repr=False)

    def __lt__(self, other: WaitingText[Item]) -> bool:
        return (-self.priority, self.number) < (-other.priority, other.number)


class Planner(Generic[Item]):
    """The waiting texts. Adding, planning and dropping take a time that hardly depends on how many texts wait.

    The anchor of a micro-batch is the oldest text if that is overdue, else the oldest of the highest priority. Texts
    of the same length or the next shorter ones join it, up to the budget. While the micro-batch is less than an eighth
    full, also those join that are up to one length class shorter or longer, and texts of a lower priority than the
    anchor; so an urgent text is not delayed by a full micro-batch around it. If all texts are overdue, priorities would
    have no effect; so a text of a higher priority goes after each micro-batch with an overdue anchor.
    """

    def __init__(self, limits: PlannerLimits) -> None:
        self._limits = limits
        self._numbers = count()
        self._waiting = 0
        self._ended = 0
        # Each text is in three queues. One that does not wait any more is skipped, or removed when they are rebuilt.
        self._by_arrival: deque[WaitingText[Item]] = deque()
        self._by_priority: list[WaitingText[Item]] = []
        self._groups: dict[Hashable, _ByLength[Item]] = {}
        self._last_was_overdue = False

    def __len__(self) -> int:
        return self._waiting

    def add(self, text: WaitingText[Item]) -> None:
        text.number, text.waiting = next(self._numbers), True
        self._waiting += 1
        self._by_arrival.append(text)
        heapq.heappush(self._by_priority, text)
        self._index(text)

    def drop(self, text: WaitingText[Item]) -> bool:
        """Forget a text; return false if it is not waiting."""
        if not text.waiting:
            return False
        self._take(text)
        self._compact()
        return True

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
        lowest = longest - _CLASS_STEPS * _length_step(longest)
        highest = longest + _CLASS_STEPS * _length_step(longest + 1)

        group = self._groups[anchor.group]

        def filled() -> bool:
            return len(batch) * longest >= self._limits.max_batch_tokens * _MIN_FILL

        for text in group.shorter(longest, lambda text: text.priority >= anchor.priority or not filled()):
            padded = (len(batch) + 1) * longest
            if not self._fits(len(batch) + 1, longest):
                break
            padding = padded - real - text.tokens
            if padding > padded * _MAX_PADDING and (filled() or text.tokens < lowest):
                break
            self._take(text)
            batch.append(text)
            real += text.tokens
        for text in group.longer(longest, highest):
            if filled() or not self._fits(len(batch) + 1, text.tokens):
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
        self._ended += 1

    def _index(self, text: WaitingText[Item]) -> None:
        self._groups.setdefault(text.group, _ByLength()).add(text)

    def _compact(self) -> None:
        """Rebuild the queues once more texts have ended since the last time than wait."""
        if self._ended <= self._waiting + 1024:
            return
        self._ended = 0
        kept = [text for text in self._by_arrival if text.waiting]
        self._by_arrival, self._by_priority, self._groups = deque(kept), list(kept), {}
        heapq.heapify(self._by_priority)
        for text in kept:
            self._index(text)


class _ByLength(Generic[Item]):
    """The texts of a group in a queue for each length."""

    def __init__(self) -> None:
        self._queues: dict[int, list[WaitingText[Item]]] = {}
        self._lengths: list[int] = []

    def add(self, text: WaitingText[Item]) -> None:
        queue = self._queues.get(text.tokens)
        if queue is None:
            queue = self._queues[text.tokens] = []
            insort(self._lengths, text.tokens)
        heapq.heappush(queue, text)

    def shorter(self, longest: int, accepts: Callable[[WaitingText[Item]], bool]) -> Iterator[WaitingText[Item]]:
        """Yield the waiting texts of at most this length: the longest first, each to be taken before the next.

        The texts of a length come in order; the rest of it is left out from the first that is not accepted.
        """
        position = bisect_left(self._lengths, longest + 1)
        while position:
            position -= 1
            yield from self._of_length(self._lengths[position], accepts)

    def longer(self, longest: int, highest: int) -> Iterator[WaitingText[Item]]:
        """Yield the waiting texts that are longer, up to a length: the shortest first."""
        position = bisect_left(self._lengths, longest + 1)
        while position < len(self._lengths) and self._lengths[position] <= highest:
            length = self._lengths[position]
            yield from self._of_length(length, lambda _: True)
            # Lengths without waiting texts have just been removed.
            position = bisect_left(self._lengths, length + 1)

    def _of_length(self, length: int, accepts: Callable[[WaitingText[Item]], bool]) -> Iterator[WaitingText[Item]]:
        queue = self._queues[length]
        while queue:
            if not queue[0].waiting:
                heapq.heappop(queue)
            elif accepts(queue[0]):
                yield queue[0]
            else:
                return
        del self._queues[length]
        self._lengths.pop(bisect_left(self._lengths, length))
