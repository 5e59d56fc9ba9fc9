"""Upstream's encoding of words as token ids: one tensor for all words of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.common.request_error import RequestError

MAX_WORDS = 256
MAX_WORD_LENGTH = 1024
"""Bytes of a word, or token ids. More could make every token of the answer slow."""


def check_word_count(count: int, name: str) -> None:
    """Raise RequestError (`invalid_parameter`) for too many words."""
    if count > MAX_WORDS:
        raise RequestError(f"{name} holds {count} words; at most {MAX_WORDS} are taken", "invalid_parameter")


def check_words(words: Sequence[str] | Sequence[Sequence[int]], name: str) -> None:
    """Raise RequestError (`invalid_parameter`) for too many words, or one that is too long."""
    check_word_count(len(words), name)
    check_word_length(max(map(len, words), default=0), name)


def check_word_length(length: int, name: str) -> None:
    """Raise RequestError (`invalid_parameter`) for a word of this length if it is too long."""
    if length > MAX_WORD_LENGTH:
        raise RequestError(
            f"{name} holds a word of more than {MAX_WORD_LENGTH} bytes or tokens; shorten it", "invalid_parameter"
        )


def weighted_words(words: Sequence[str], weights: Sequence[float]) -> list[tuple[str, float]]:
    """Return each word with its weight, without the empty words that pad the rows of a batch.

    Raises RequestError (`invalid_parameter`) for a word without weight or a weight without word; empty words and
    weights of 0 may lack the other.
    """
    if len(words) == len(weights):
        return [(word, weight) for word, weight in zip(words, weights, strict=True) if word]
    if not any(words) and not any(weights):
        return []
    if not words:
        raise RequestError("embedding_bias_weights requires embedding_bias_words; send both", "invalid_parameter")
    raise RequestError(
        f"embedding_bias_words holds {len(words)} words and embedding_bias_weights {len(weights)} weights; send one"
        " weight for each word",
        "invalid_parameter",
    )


def pack(rows: Sequence[Sequence[Sequence[int]]]) -> Any:
    """Return the words of each prompt as INT32 [prompts, 2, longest]: their concatenated ids, and where each word ends.

    As in upstream, ids are padded with 0 and ends (cumulative) with -1; without any word the length is 0.
    """
    longest = max((sum(map(len, words)) for words in rows), default=0)
    packed = np.zeros((len(rows), 2, longest), dtype=np.int32)
    packed[:, 1] = -1
    for line, words in zip(packed, rows, strict=True):
        ids = [token_id for word in words for token_id in word]
        line[0, : len(ids)] = ids
        line[1, : len(words)] = np.cumsum([len(word) for word in words])
    return packed


def unpack(row: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """Return a prompt's words from an array [2, length]. Raises RequestError (`invalid_request`) for invalid ends."""
    if row.ndim != 2 or row.shape[0] != 2:
        raise RequestError(
            f"{name} has the shape {list(row.shape)}; it must be [2, length], ids and ends", "invalid_request"
        )
    padding = row[1] < 0
    count = int(padding.argmax()) if padding.any() else row.shape[1]
    check_word_count(count, name)
    words: list[tuple[int, ...]] = []
    start = 0
    for end in row[1, :count].tolist():
        if not start < end <= row.shape[1]:
            raise RequestError(
                f"{name} has the offset {end} after {start}; offsets must increase, up to the number of ids"
                f" ({row.shape[1]})",
                "invalid_request",
            )
        check_word_length(end - start, name)
        words.append(tuple(row[0, start:end].tolist()))
        start = end
    return tuple(words)
