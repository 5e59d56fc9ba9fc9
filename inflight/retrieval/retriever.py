"""Retrieval for services: a question comes, its passages go into a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from inflight_client import AsyncClient

from inflight.retrieval.passages import Passages
from inflight.retrieval.table import PassageTable


class Retriever:
    """Embeds questions, searches their passages in the table, and has them reranked if `candidates` are given: so many
    passages of a question are reranked.

    `client`'s server has the model `embedding`, and `rerank` if it reranks.
    """

    def __init__(
        self, client: AsyncClient, table: PassageTable, *, top_k: int = 5, candidates: int | None = None
    ) -> None:
        self._client, self._table = client, table
        self._top_k, self._candidates = top_k, candidates
        self._checked = False

    async def retrieve(self, questions: Sequence[str]) -> list[Passages]:
        """Return the passages of each question, best first. Raises InflightError, and SQLAlchemy's errors."""
        if not questions:
            return []
        if not self._checked:
            await asyncio.to_thread(self._table.check)
            self._checked = True
        embedded = await self._client.embed(questions, input_type="query")
        self._table.check_dimensions(embedded.dimensions)
        count = self._top_k if self._candidates is None else max(self._candidates, self._top_k)
        nearest = await asyncio.to_thread(self._table.search, list(embedded.vectors), count)
        if self._candidates is None:
            return nearest
        pairs = zip(questions, nearest, strict=True)
        return list(await asyncio.gather(*(self._reranked(question, passages) for question, passages in pairs)))

    async def _reranked(self, question: str, passages: Passages) -> Passages:
        if not passages:
            return passages
        ranking = await self._client.rerank(question, passages.texts, truncate=True)
        return passages.reranked(ranking, self._top_k)
