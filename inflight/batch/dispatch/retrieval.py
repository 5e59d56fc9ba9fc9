"""Retrieves the passages of rows, many rows at a time, before the rows are sent to a model that generates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflight_client import InflightError
from inflight_client.encodings import Embeddings, Reranking

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.connect import connect
from inflight.batch.dispatch.encoder_pool import EncoderPool, Outage, Suspects
from inflight.batch.dispatch.row_queue import Feed, OnRowDone
from inflight.batch.errors import BatchError
from inflight.batch.job.rows import EmbedRequest, InvalidRow, RerankRequest, Row
from inflight.batch.job.spec import Job, Task
from inflight.batch.row_formats.retrieval import RetrievalRowFormat
from inflight.batch.storage.database_engine import create_database_engine, database_error_text, sqlstate
from inflight.retrieval.passages import Passages
from inflight.retrieval.table import PassageTable

if TYPE_CHECKING:
    from inflight_client.encodings import Vectors
    from sqlalchemy.exc import SQLAlchemyError

_BATCHES = 4
"""Batches of rows in work at a time: one is embedded while others are searched and reranked."""
_RERANKS = 16
"""Rerank requests in flight."""
_LOCK_SECONDS = 10.0
"""Seconds for which a search waits for a lock before it counts as not answered."""
_DATA_ERROR = "22"
"""SQLSTATE class of values that the database does not accept."""
_DENIED = ("28", "3D", "42501")
"""SQLSTATEs of a refused user, an unknown database, and missing privileges."""


@dataclass(frozen=True)
class Encoders:
    """The servers that embed, and those that rerank."""

    embed: tuple[Backend, ...]
    rerank: tuple[Backend, ...] = ()

    @classmethod
    def of_job(cls, job: Job, on_message: Callable[[str], None]) -> Encoders:
        """Return the encoders of a job: of its servers for retrieval, or else of those that generate."""
        assert job.retrieval is not None
        options = job.run_options.model_copy(update={"model": None})
        addresses = options.retrieve_servers or options.servers
        tasks: tuple[Task, ...] = ("embed", "rerank") if job.retrieval.rerank else ("embed",)
        return cls(*(tuple(connect(each, options, on_message, task) for each in addresses) for task in tasks))


class RetrievalStep:
    """The feed of a job whose prompts contain passages, between the feed of rows as read and the queue.

    A row that fails gets its error through `on_row_done`, or `on_invalid` if its template can't be filled in. Servers
    and a database that are down are retried until the job's wait timeout. `bind_encoder` is given the task and the
    build of each encoder, and raises BatchError where that is not the job's.
    """

    def __init__(
        self,
        feed: Feed,
        job: Job,
        row_format: RetrievalRowFormat,
        encoders: Encoders,
        on_row_done: OnRowDone,
        on_invalid: Callable[[InvalidRow], None],
        bind_encoder: Callable[[Task, str], None],
        on_message: Callable[[str], None],
    ) -> None:
        assert job.retrieval is not None
        self._feed, self._spec, self._options, self._format = feed, job.retrieval, job.run_options, row_format
        self._on_row_done, self._on_invalid = on_row_done, on_invalid
        suspects = Suspects()
        self._embedders = EncoderPool("embed", encoders.embed, self._options, suspects, bind_encoder, on_message)
        self._rerankers = EncoderPool("rerank", encoders.rerank, self._options, suspects, bind_encoder, on_message)
        self._engine = create_database_engine(self._spec.address, "input_invalid", pooled=True)
        spec, timeout = self._spec, self._options.server_wait_timeout
        self._table = PassageTable(
            *(self._engine, spec.table),
            column=spec.column,
            text=spec.text,
            id=spec.id,
            metric=spec.metric,
            lock_timeout=min(timeout, _LOCK_SECONDS),
        )
        self._database = Outage(spec.shown, timeout, "storage_unreachable", on_message)
        self._reading = asyncio.Lock()
        self._rerank_slots = asyncio.Semaphore(_RERANKS)
        self._batches: deque[asyncio.Task[list[Row] | None]] = deque()
        self._ready: deque[Row] = deque()

    async def check(self) -> None:
        """Check the table, before the first row. Raises BatchError."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            await asyncio.to_thread(self._table.check)
        except InflightError as error:
            raise BatchError(f"{self._spec.shown}: {error}", error.code) from None
        except SQLAlchemyError as error:
            raise self._to_batch_error(error) from error

    async def get(self) -> Row | None:
        """Return the next row with its prompt; None at the end. Raises BatchError, and what the feed raises."""
        while not self._ready:
            while len(self._batches) < _BATCHES:
                self._batches.append(asyncio.ensure_future(self._next_batch()))
            rows = await self._batches.popleft()
            if rows is None:
                return None
            self._ready.extend(rows)
        return self._ready.popleft()

    async def close(self) -> None:
        for task in self._batches:
            task.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)
        for backend in (*self._embedders.all, *self._rerankers.all):
            await backend.close()
        await asyncio.to_thread(self._table.close)
        await asyncio.to_thread(self._engine.dispose)

    async def _next_batch(self) -> list[Row] | None:
        """Read the next rows and return those that got their passages; None at the end."""
        rows: list[Row] = []
        async with self._reading:
            while len(rows) < self._options.texts_per_request and (row := await self._feed.get()) is not None:
                rows.append(row)
        return await self._retrieve(rows) if rows else None

    async def _retrieve(self, rows: Sequence[Row]) -> list[Row]:
        embedded = await self._embedders.send([row.request for row in rows])
        pairs = list(zip(rows, embedded, strict=True))
        left = [(row, answer.vectors[0]) for row, answer in pairs if isinstance(answer, Embeddings)]
        results: list[tuple[Row, Passages | InflightError]] = [
            (row, answer) for row, answer in pairs if isinstance(answer, InflightError)
        ]
        if left:
            try:
                self._table.check_dimensions(len(left[0][1]))
            except InflightError as error:
                raise BatchError(f"{self._spec.shown}: {error}", error.code) from None
            searched, passages = [row for row, _ in left], await self._search([vector for _, vector in left])
            if self._spec.rerank:
                passages = await self._rerank_all(searched, passages)
            results += zip(searched, passages, strict=True)
        ready = []
        for row, result in results:
            if isinstance(result, InflightError):
                self._on_row_done(row, result, 1)
            elif isinstance(prompted := self._format.with_passages(row, result), InvalidRow):
                self._on_invalid(prompted)
            else:
                ready.append(prompted)
        return ready

    async def _search(self, vectors: Sequence[Vectors]) -> list[Passages | InflightError]:
        """Search until the database answers. Values that it does not accept fail alone."""
        from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
        from sqlalchemy.exc import TimeoutError as PoolTimeoutError

        while True:
            try:
                passages: list[Passages | InflightError] = list(
                    await asyncio.to_thread(self._table.search, vectors, self._spec.nearest)
                )
            except SQLAlchemyError as error:
                state = sqlstate(error)
                lost = isinstance(error, OperationalError | InterfaceError | PoolTimeoutError) or (
                    isinstance(error, DBAPIError) and error.connection_invalidated
                )
                if lost and not state.startswith(_DENIED):
                    await self._database.wait(self._error_text(error))
                    continue
                if not state.startswith(_DATA_ERROR):
                    raise self._to_batch_error(error) from error
                if len(vectors) > 1:
                    return [result for vector in vectors for result in await self._search([vector])]
                return [InflightError(f"the search failed: {self._error_text(error)}", "row_invalid")]
            self._database.answered()
            return passages

    async def _rerank_all(
        self, rows: Sequence[Row], results: Sequence[Passages | InflightError]
    ) -> list[Passages | InflightError]:
        tasks = [asyncio.ensure_future(self._rerank(*pair)) for pair in zip(rows, results, strict=True)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _rerank(self, row: Row, passages: Passages | InflightError) -> Passages | InflightError:
        if isinstance(passages, InflightError) or not passages:
            return passages
        assert isinstance(row.request, EmbedRequest)
        (question,) = row.request.texts
        async with self._rerank_slots:
            (answer,) = await self._rerankers.send([RerankRequest(str(question), passages.texts, truncate=True)])
        if isinstance(answer, InflightError):
            return answer
        assert isinstance(answer, Reranking)
        return passages.reranked(answer, self._spec.top_k)

    def _to_batch_error(self, error: SQLAlchemyError) -> BatchError:
        from sqlalchemy.exc import DBAPIError

        state, words = sqlstate(error), self._error_text(error)
        if state.startswith(_DENIED):
            return BatchError(f"{self._spec.shown} refuses access ({words}); check the user's rights", "storage_denied")
        if isinstance(error, DBAPIError) and state and not state.startswith(("08", "53", "55P03", "57", "58")):
            return BatchError(f"{self._spec.shown} can't be searched: {words}", "input_invalid")
        return BatchError(
            f"{self._spec.shown} can't be reached ({words}); check its address, or try again later",
            "storage_unreachable",
        )

    def _error_text(self, error: SQLAlchemyError) -> str:
        return database_error_text(self._spec.address, getattr(error, "orig", None) or error)
