"""The last tokens of each stream, for engines that send none with a chunk.

TensorRT-LLM's C++ backend sends new tokens alone, and decoding them takes those before (see `detokenizer`). Nobody says
when a stream has ended, so what has not been asked for in a while is forgotten.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from inflight.runtime.detokenizer import CONTEXT_TOKENS, Chunk

MOST_STREAMS = 65_536
"""More than run at once; with CONTEXT_TOKENS ids each they take some 30 MB."""
IDLE_SECONDS = 600.0


class StreamTails:
    """Not thread-safe: one thread asks. `textless_ids` are tokens that say nothing and need not be kept."""

    def __init__(
        self,
        textless_ids: frozenset[int] = frozenset(),
        *,
        most: int = MOST_STREAMS,
        idle_seconds: float = IDLE_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._textless_ids = textless_ids
        self._most = most
        self._idle_seconds = idle_seconds
        self._now = now
        self._tails: OrderedDict[Hashable, tuple[float, list[int]]] = OrderedDict()
        """By stream, the one that was heard of the longest time ago first."""

    def __len__(self) -> int:
        return len(self._tails)

    def chunk(self, stream: Hashable, token_ids: Sequence[int]) -> Chunk:
        """The next tokens of a stream, with those before them."""
        now = self._now()
        self._forget_before(now - self._idle_seconds)
        _, tail = self._tails.pop(stream, (now, []))
        said = [token_id for token_id in token_ids if token_id not in self._textless_ids]
        self._tails[stream] = now, [*tail, *said][-CONTEXT_TOKENS:]
        if len(self._tails) > self._most:
            self._tails.popitem(last=False)
        return Chunk(token_ids, tail, final=False)

    def _forget_before(self, moment: float) -> None:
        while self._tails and next(iter(self._tails.values()))[0] < moment:
            self._tails.popitem(last=False)
