"""The last tokens of each stream, for engines that send no context with a chunk.

TensorRT-LLM's C++ backend sends new tokens only, and decoding them needs those before (see `detokenizer`). Triton does
not report the end of a stream, so streams without recent chunks are dropped.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from inflight.text.detokenizer import CONTEXT_TOKENS, Chunk

MAX_STREAMS = 65_536
"""More than run at once; with CONTEXT_TOKENS ids each they take about 30 MB."""
IDLE_SECONDS = 600.0


class ContextCache:
    """Remembers the context of each stream, without `special_token_ids`, which have no text; not thread-safe."""

    def __init__(
        self,
        special_token_ids: frozenset[int] = frozenset(),
        *,
        max_streams: int = MAX_STREAMS,
        idle_seconds: float = IDLE_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._special_token_ids = special_token_ids
        self._max_streams = max_streams
        self._idle_seconds = idle_seconds
        self._now = now
        self._contexts: OrderedDict[Hashable, tuple[float, list[int]]] = OrderedDict()
        """By stream, the least recently used first."""

    def __len__(self) -> int:
        return len(self._contexts)

    def next_chunk(self, stream: Hashable, token_ids: Sequence[int]) -> Chunk:
        """Return the next tokens of a stream as a chunk with its context."""
        now = self._now()
        self._evict_before(now - self._idle_seconds)
        _, tail = self._contexts.pop(stream, (now, []))
        spelled = [token_id for token_id in token_ids if token_id not in self._special_token_ids]
        self._contexts[stream] = now, [*tail, *spelled][-CONTEXT_TOKENS:]
        if len(self._contexts) > self._max_streams:
            self._contexts.popitem(last=False)
        return Chunk(token_ids, tail, final=False)

    def _evict_before(self, moment: float) -> None:
        while self._contexts and next(iter(self._contexts.values()))[0] < moment:
            self._contexts.popitem(last=False)
