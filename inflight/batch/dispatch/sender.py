"""Sends rows to one server, each once, and sorts out by its cause what did not work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from inflight_client import InflightError
from inflight_client.results import Generation

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.concurrency_limit import AdaptiveLimit
from inflight.batch.dispatch.failure_kind import FailureKind, classify_failure
from inflight.batch.dispatch.row_queue import RowQueue
from inflight.batch.job.rows import Row, RowRequest
from inflight.batch.job.spec import RunOptions

_WAIT_INITIAL, _WAIT_MAX = 0.5, 60.0
_PROBE_REQUEST = RowRequest("Hello", 1)
_SLOW_SECONDS = 1.0
"""A server that takes so long over a row without a complaint is at work on it."""


class RowSender:
    """`halt` is called when the server should get no row just now: it is overloaded, or something is wrong with it."""

    def __init__(
        self,
        backend: Backend,
        options: RunOptions,
        queue: RowQueue,
        limit: AdaptiveLimit,
        run_id: str,
        on_pause: Callable[[], None],
    ) -> None:
        self.in_flight = 0
        self.server_error: InflightError | None = None
        """What went wrong with the server itself; whoever fixes that clears it."""
        self.last_answer_at = 0.0
        """When the server last answered a row, be it with a refusal that is the row's alone."""
        self._backend, self._queue, self._limit = backend, queue, limit
        self.rejects_probe = False
        """Whether the server refused even what any model answers, and has answered no such thing since."""
        self._probes = 0
        self._run_id, self._on_pause = run_id, on_pause
        self._max_attempts = options.max_attempts
        self.isolated: frozenset[int] = frozenset()
        """Numbers of rows that are to stay away from others."""
        self.not_accepted: list[Row] = []
        """Of these, those that the server did not take."""
        self._last_refusal = 0.0
        self._crashed_rows: list[Row] = []
        self._engine_died = False

    async def send(self, row: Row) -> None:
        """Send a row; what becomes of it then is the rows' or the suspects' business."""
        rows = self._queue
        self.in_flight += 1
        rows.mark_in_flight(row)
        try:
            answer = await self._generate(row)
            if isinstance(answer, InflightError):
                self._on_error(row, answer)
            else:
                self._on_answer(row, answer)
        except asyncio.CancelledError:  # the server is set aside, or all ends
            if not rows.stopped:
                self._requeue(row)
            raise
        finally:
            self.in_flight -= 1
            rows.mark_ended(row)

    async def probe_generation(self) -> InflightError | None:
        """Ask what any model answers: why this one does not, if so."""
        self._probes += 1
        try:
            await self._backend.generate(_PROBE_REQUEST, f"{self._run_id}-short-{self._probes}")
        except InflightError as error:
            if classify_failure(error) not in (FailureKind.PERMANENT, FailureKind.AMBIGUOUS):
                return error
            self.rejects_probe = True
            return InflightError(f"it refuses a short prompt as well: {error}", "model_not_ready")
        self.rejects_probe = False
        return None

    def take_crashed(self) -> tuple[list[Row], bool]:
        """The rows that were in flight when the server fell, and whether it was its engine that died."""
        fallen, died = self._crashed_rows, self._engine_died
        self._crashed_rows, self._engine_died = [], False
        return fallen, died

    def is_busy(self, now: float) -> bool:
        """Whether rows are in flight and nothing was refused for a while."""
        return self.in_flight > 0 and now - self._last_refusal > _SLOW_SECONDS

    async def _generate(self, row: Row) -> Generation | InflightError:
        """Or why there is none: of a refusal that may be the server's own doing, what another request shows."""
        try:
            return await self._backend.generate(
                row.request, f"{self._run_id}-{row.number}-{self._queue.next_attempt(row)}"
            )
        except InflightError as error:
            if classify_failure(error) is not FailureKind.AMBIGUOUS:
                return error
            return await self.probe_generation() or error

    def _on_answer(self, row: Row, answer: Generation) -> None:
        self.last_answer_at = now = asyncio.get_running_loop().time()
        usage = answer.usage
        self._limit.row_answered(0 if usage is None else usage.total_tokens, now)
        self._queue.finish(row, answer)

    def _on_error(self, row: Row, error: InflightError) -> None:
        why = classify_failure(error)
        now = asyncio.get_running_loop().time()
        if why in (FailureKind.PERMANENT, FailureKind.AMBIGUOUS, FailureKind.TRANSIENT):
            self.last_answer_at = now
            self._on_row_failure(row, error, why)
            return
        self._last_refusal = now
        if why is FailureKind.OVERLOADED:
            self._limit.server_overloaded(self.in_flight, now)
            self._on_pause()
            self._requeue(row)
            return
        self.server_error = error
        self._on_pause()
        if why is FailureKind.CRASHED:
            self._crashed_rows.append(row)
            self._engine_died = self._engine_died or error.code == "engine_died"
            self._queue.count_attempt(row)
        else:
            self._requeue(row)

    def _requeue(self, row: Row) -> None:
        """A row that the server did not take, or has not answered in time."""
        if row.number in self.isolated:
            self._queue.count_attempt(row)
            self.not_accepted.append(row)
        else:
            self._queue.retry_later(row)

    def _on_row_failure(self, row: Row, error: InflightError, why: FailureKind) -> None:
        """What is the row's own: tried again for a while, if that may help."""
        if why is not FailureKind.TRANSIENT:
            self._queue.finish(row, error)
            return
        failures = self._queue.count_failure(row)
        if failures >= self._max_attempts:
            self._queue.finish(row, error)
        else:
            longest = min(_WAIT_INITIAL * 2 ** (failures - 1), _WAIT_MAX)
            self._queue.retry_later(row, longest * random.uniform(0.5, 1.0))
