"""Orders rows so that those that begin alike are sent one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from inflight.batch.job.rows import GenerateRequest, Row

SHARED_PREFIX_CHARACTERS = 256
"""Length of the common prefix, in characters, that groups prompts: about 64 tokens, two blocks of a KV cache."""
_MAX_DEPTH = 64
"""Maximum grouping depth: prompts with this many equal pieces are not compared further."""
_CHARACTERS_A_TOKEN = 4
_PREFILL_SPEEDUP = 8
"""Number of input tokens that are processed in the time of one output token."""

_Item = tuple[float, int, str]
"""A row's negative work, its place and its text: when sorted, the longest comes first."""


def order_by_prefix(rows: Sequence[Row]) -> list[Row]:
    """Group rows by common prefix: the longer the prefix, the closer the rows; at each level the longest work first.

    An engine keeps the KV cache of prefixes for a while, so rows that share one reuse it if they are sent soon after
    each other. Long rows go first, so that at the end of a job short rows fill the engine, and no long one is left
    alone in it. Rows that are not generated share no cache: they are ordered by length, so that the texts of a request
    are of similar lengths. O(n log n); equal rows keep their order.
    """
    items = []
    for place, row in enumerate(rows):
        if not isinstance(row.request, GenerateRequest):
            return sorted(rows, key=lambda row: -row.request.characters)
        text = row.request.text
        work = row.request.max_tokens + len(text) / (_CHARACTERS_A_TOKEN * _PREFILL_SPEEDUP)
        items.append((-work, place, text))
    return [rows[place] for _, place, _ in _ordered(items, 0)]


def _ordered(items: list[_Item], depth: int) -> list[_Item]:
    """Order items that share the first `depth` pieces."""
    if depth == _MAX_DEPTH:
        return sorted(items)
    start, end = depth * SHARED_PREFIX_CHARACTERS, (depth + 1) * SHARED_PREFIX_CHARACTERS
    groups: dict[str | int, list[_Item]] = {}
    for item in items:
        text = item[2]
        groups.setdefault(text[start:end] if len(text) >= end else item[1], []).append(item)
    parts = [group if len(group) == 1 else _ordered(group, depth + 1) for group in groups.values()]
    parts.sort(key=itemgetter(0))
    return [item for part in parts for item in part]
