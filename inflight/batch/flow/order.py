"""In which order the rows of a window are asked."""

from __future__ import annotations

import json
from collections.abc import Sequence

from inflight.batch.row import Row

SHARED = 256
"""Characters that prompts begin with alike before they are put side by side."""


def best_order(rows: Sequence[Row]) -> list[Row]:
    """The rows that begin alike side by side, those with most work first.

    An engine keeps the KV cache of prompts' beginnings for a while: rows that share one find it there if they come
    soon after each other. Rows with long prompts or answers go first, so that at the end of a job many short ones fill
    the engine instead of a few long ones that leave it half empty. Takes O(n log n); equal rows keep their order.
    """
    texts = [(_text(row), place) for place, row in enumerate(rows)]
    texts.sort()
    groups: list[tuple[int, list[int]]] = []
    before = ""
    for text, place in texts:
        work = len(text) + 4 * rows[place].ask.max_tokens
        if len(text) >= SHARED and text[:SHARED] == before[:SHARED]:
            most, places = groups[-1]
            places.append(place)
            groups[-1] = (max(most, work), places)
        else:
            groups.append((work, [place]))
        before = text
    groups.sort(key=lambda group: -group[0])
    return [rows[place] for _, places in groups for place in places]


def _text(row: Row) -> str:
    prompt = row.ask.prompt
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
