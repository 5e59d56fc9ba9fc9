"""Sends the rows of a job, and those whose answer meets a condition to a second model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from inflight_client import InflightError

from inflight.batch.dispatch.dispatcher import Dispatcher
from inflight.batch.dispatch.row_queue import Feed, OnRowDone
from inflight.batch.errors import BatchError
from inflight.batch.job.rows import GenerateRequest, Refinement, Row, RowAnswer, add_tokens, answer_tokens
from inflight.batch.reporting.progress import ServerStatus
from inflight.batch.row_formats.answer_check import Condition

_MAX_WAITING = 4096
"""Rows that wait for the second model; beyond that, the first one gets no further rows."""

_WRONG_OPTION = ("permission_denied", "model_not_found", "unsupported_deployment", "host_not_found")

MakeDispatcher = Callable[[Feed, OnRowDone], Dispatcher]


class Sender(Protocol):
    """What sends the rows of a job: a Dispatcher, or a Cascade of two."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...
    async def drain(self, seconds: float) -> None: ...
    async def close(self) -> None: ...
    def set_pace(self, priority: int, share: float) -> None: ...
    @property
    def pending_retries(self) -> int: ...
    def servers(self) -> tuple[ServerStatus, ...]: ...


class Cascade:
    """Two dispatchers: the rows of `feed` go to the first, and those that meet the condition to the second then.

    `on_row_done` gets each row once. If the second model fails on a row, or its servers fail for good, the row keeps
    its first answer, and its `refinement` names the error.
    """

    def __init__(
        self,
        feed: Feed,
        on_row_done: OnRowDone,
        condition: Condition,
        first: MakeDispatcher,
        second: MakeDispatcher,
        on_message: Callable[[str], None],
    ) -> None:
        self._feed, self._on_row_done, self._condition, self._on_message = feed, on_row_done, condition, on_message
        self._open: dict[int, tuple[Row, RowAnswer | InflightError, int]] = {}
        """Rows that wait for a second answer, with their first one and the attempts that it took."""
        self._waiting = _Waiting()
        self._first, self._second = first(self, self._on_first), second(self._waiting, self._on_second)
        self._lost = ""
        """The code of why the second model's servers are no longer used."""
        self._second_answered = False

    async def get(self) -> Row | None:
        """Return the next row for the first model; None at the end."""
        while len(self._open) >= _MAX_WAITING and not self._waiting.ended:
            await self._waiting.taken()
        row = await self._feed.get()
        if row is None or not isinstance(row.request, GenerateRequest):
            return row
        retries = bool(self._lost) or not (self._condition.asks_schema or self._condition.asks_json)
        request = replace(row.request, wants_scores=self._condition.reads_scores, retries_invalid=retries)
        return replace(row, request=request)

    async def run(self) -> None:
        """Run until every row is done. Raises what the first dispatcher raises, `job_mismatch` of the second, and what
        shows that its address or its options are wrong, unless it has answered a row."""
        tasks = [asyncio.ensure_future(self._run_first()), asyncio.ensure_future(self._run_second())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _run_first(self) -> None:
        await self._first.run()
        self._waiting.end()

    async def _run_second(self) -> None:
        try:
            await self._second.run()
        except BatchError as error:
            if error.code == "job_mismatch" or (error.code in _WRONG_OPTION and not self._second_answered):
                raise
            self._lost = error.code
            self._on_message(f"The servers of --refine-with are no longer used; rows keep their first answers: {error}")
            for number in [*self._open]:
                self._keep_first(number, error.code, 0)
            self._waiting.notice()

    def _on_first(self, row: Row, result: RowAnswer | InflightError, attempts: int) -> None:
        because = self._condition.met(result)
        if not because:
            self._on_row_done(row, result, attempts)
            return
        spent = row.spent if isinstance(result, InflightError) else add_tokens(row.spent, answer_tokens(result))
        asked = replace(row, spent=spent, refinement=Refinement(because, spent))
        if isinstance(row.request, GenerateRequest):
            asked = replace(asked, request=replace(row.request, wants_scores=False, retries_invalid=True))
        self._open[row.number] = asked, result, attempts
        if self._lost:
            self._keep_first(row.number, self._lost, 0)
        else:
            self._waiting.put(asked)

    def _on_second(self, row: Row, result: RowAnswer | InflightError, attempts: int) -> None:
        if isinstance(result, InflightError):
            _, answer, before = self._open[row.number]
            self._open[row.number] = row, answer, before  # this one has the tokens of wrong second answers too
            self._keep_first(row.number, result.code, attempts)
        else:
            self._second_answered = True
            _, _, before = self._open.pop(row.number)
            self._on_row_done(row, result, before + attempts - 1)
        self._waiting.notice()

    def _keep_first(self, number: int, code: str, attempts: int) -> None:
        row, answer, before = self._open.pop(number)
        assert row.refinement is not None
        spent = row.spent
        if not isinstance(answer, InflightError):  # its tokens are counted as the answer's
            tokens = answer_tokens(answer)
            spent = spent[0] - tokens[0], spent[1] - tokens[1]
        kept = replace(row, spent=spent, refinement=replace(row.refinement, error=code))
        self._on_row_done(kept, answer, before + max(0, attempts - 1))

    def stop(self) -> None:
        self._first.stop()
        self._second.stop()
        self._waiting.end()

    async def drain(self, seconds: float) -> None:
        self.stop()
        await asyncio.gather(self._first.drain(seconds), self._second.drain(seconds))

    async def close(self) -> None:
        await self._first.close()
        await self._second.close()

    def set_pace(self, priority: int, share: float) -> None:
        self._first.set_pace(priority, share)
        self._second.set_pace(priority, share)

    @property
    def pending_retries(self) -> int:
        return self._first.pending_retries + self._second.pending_retries

    def servers(self) -> tuple[ServerStatus, ...]:
        return self._first.servers() + self._second.servers()


class _Waiting:
    """The feed of the second model."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self.ended = False

    def put(self, row: Row) -> None:
        self._rows.append(row)
        self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._changed.set()
        self._taken.set()

    def notice(self) -> None:
        """Wake up who waits in `taken`."""
        self._taken.set()

    async def taken(self) -> None:
        """Wait until a row is done, or until the end."""
        self._taken.clear()
        if not self.ended:
            await self._taken.wait()

    async def get(self) -> Row | None:
        while not self._rows:
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._rows.popleft()
