"""In which order the rows of a window are asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter

from inflight.batch.job.rows import Row

SHARED_PREFIX_CHARACTERS = 256
"""Characters that prompts must begin alike with to be put side by side: some 64 tokens, two blocks of a KV cache."""
_MAX_DEPTH = 64
"""Prompts that are alike for so many times SHARED are side by side whatever follows."""
_CHARACTERS_A_TOKEN = 4
_PREFILL_SPEEDUP = 8
"""Tokens that are read in the time that one is written."""

_Item = tuple[float, int, str]
"""A row's work with a minus before it, its place, and its text: sorted, what takes longest comes first."""


def order_by_prefix(rows: Sequence[Row]) -> list[Row]:
    """The rows that begin alike side by side, the more alike the closer; those with most work first, at each level.

    An engine keeps the KV cache of prompts' beginnings for a while: rows that share one find it there if they come
    soon after each other. What takes long goes first, so that at a job's end short rows fill the engine, and no long
    one is left alone in it. O(n log n); equal rows keep their order.
    """
    items = []
    for place, row in enumerate(rows):
        text = _text(row)
        work = row.request.max_tokens + len(text) / (_CHARACTERS_A_TOKEN * _PREFILL_SPEEDUP)
        items.append((-work, place, text))
    return [rows[place] for _, place, _ in _ordered(items, 0)]


def _ordered(items: list[_Item], depth: int) -> list[_Item]:
    """Items that are alike for `depth` times SHARED."""
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


def _text(row: Row) -> str:
    """What rows share the beginning of where their prompts do."""
    prompt = row.request.prompt
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
