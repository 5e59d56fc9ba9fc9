"""Passages that were retrieved for a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, overload

from inflight_client.encodings import RankedDocument


@dataclass(frozen=True)
class Passage:
    """A passage of a document, by the id of its row. As a text, it is its own.

    `score`: the similarity to the question, higher for nearer ones: cosine, inner product, or minus the L2 distance.
    `rerank_score`: the reranker's, if it was asked.
    """

    id: int | str
    text: str
    score: float
    rerank_score: float | None = None

    def __str__(self) -> str:
        return self.text

    def source(self) -> dict[str, Any]:
        """Return the id and the scores, to trace an answer."""
        record = {"id": self.id, "score": self.score}
        return record if self.rerank_score is None else {**record, "rerank_score": self.rerank_score}


class Passages(tuple[Passage, ...]):
    """The passages for a question, best first. As a text, they are paragraphs numbered from 1: `[1] ...`."""

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex) -> Passage: ...
    @overload
    def __getitem__(self, key: slice) -> Passages: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Passage | Passages:
        """Return a passage, or those of a slice: a template may have {{ passages[:2] }}."""
        return Passages(super().__getitem__(key)) if isinstance(key, slice) else super().__getitem__(key)

    def __str__(self) -> str:
        return "\n\n".join(f"[{number}] {passage.text}" for number, passage in enumerate(self, 1))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(passage.text for passage in self)

    def sources(self) -> list[dict[str, Any]]:
        """Return the ids and scores in order."""
        return [passage.source() for passage in self]

    def reranked(self, ranking: Sequence[RankedDocument], top_k: int) -> Passages:
        """Return the best `top_k` by a reranker's results for these passages."""
        return Passages(replace(self[each.index], rerank_score=each.score) for each in ranking[:top_k])
