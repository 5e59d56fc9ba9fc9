"""One server of a job: whether it is up, which rows it gets, and what becomes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from inflight_client import InflightError
from inflight_client.encodings import Embeddings
from inflight_client.results import Generation

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.concurrency_limit import INITIAL_LIMIT, MAX_LIMIT, AdaptiveLimit
from inflight.batch.dispatch.failure_kind import FailureKind, classify_failure
from inflight.batch.dispatch.poison_rows import PoisonRowFinder, SuspectGroup
from inflight.batch.dispatch.row_queue import RowQueue
from inflight.batch.errors import BatchError
from inflight.batch.job.rows import (
    ClassifyRequest,
    EmbedRequest,
    GenerateRequest,
    RerankRequest,
    Row,
    RowAnswer,
    RowRequest,
)
from inflight.batch.job.spec import EncodeSpec, RunOptions
from inflight.batch.reporting.progress import ServerStatus

_TICK_SECONDS = 0.1
_LOAD_SECONDS = 1.0
_INITIAL_LOAD_POLLS = 10
"""Number of initial ticks with a load reading each, when a server starts."""
_BUILD_SECONDS = 15.0
_PROBE_WAIT_INITIAL, _PROBE_WAIT_MAX = 0.25, 15.0
_PROBE_DOWNTIME_FRACTION = 0.2
"""Pause before the next probe, as a fraction of the time that a server has been down, so that pauses grow."""
_IDLE_TIMEOUT = 60.0
"""Waited for what is still in flight at a server that went down; then the rows of a rejected server go to others."""
_AFTER_CRASH_SECONDS = 0.5
"""Seconds after a crash during which a server may still report that it is ready."""
_UNAVAILABLE_SECONDS = 60.0
_RETRY_WAIT_INITIAL, _RETRY_WAIT_MAX = 0.5, 60.0
_INITIAL_REQUESTS, _MAX_REQUESTS = 4, 256
"""Requests in flight of tasks other than `generate`, where each has many texts: first, and at most by default."""
_SLOW_SECONDS = 1.0
"""A server that takes this long for a row without an error is busy with it."""
_MAX_QUICK_CRASHES = 3
_CRASH_COOLDOWN_SECONDS = 12.0
"""A supervisor gives up a server that crashes again and again within its first ten seconds. So after some crashes under
suspects the server does other work for so long before the next group is tried."""

_Failure = tuple[Sequence[Row], InflightError]
"""Rows, and the error that all of them had together."""


class Endpoint:
    """Sends rows to one server.

    `check_build` is given the build of the model that the server has, and raises BatchError where that is not the
    job's; `on_message` gets sentences for people. `rejected` is why the server gets no row of this job any more.
    `endpoint_is_unavailable` says of a server's name whether others should do what waits for it. `encode` is the
    job's; None for the task `generate`. `check_dimensions` is given the size of the server's vectors, before the first
    row.
    """

    def __init__(
        self,
        backend: Backend,
        options: RunOptions,
        queue: RowQueue,
        poison_rows: PoisonRowFinder,
        check_build: Callable[[str], None],
        on_message: Callable[[str], None],
        run_id: str,
        encode: EncodeSpec | None = None,
        check_dimensions: Callable[[int], None] | None = None,
    ) -> None:
        self.name = backend.name
        self.up = False
        self.rejected: BatchError | None = None
        self.last_error: InflightError | None = None
        """The last error of the server."""
        self.endpoint_is_unavailable: Callable[[str], bool] = lambda name: False
        self._backend, self._queue, self._poison_rows = backend, queue, poison_rows
        self._check_build, self._on_message = check_build, on_message
        self._probe_request = _probe_of(encode)
        self._check_dimensions = check_dimensions
        self._max_texts = options.texts_per_request
        generates = encode is None
        self._rows_per_request = self._max_texts if encode is not None and encode.task in ("embed", "classify") else 1
        """Rows in a full request."""
        self._limit = AdaptiveLimit(
            options.concurrency or (MAX_LIMIT if generates else _MAX_REQUESTS),
            INITIAL_LIMIT if generates else _INITIAL_REQUESTS,
        )
        self._run_id, self._max_attempts = run_id, options.max_attempts
        self._slots = 0
        """How many tasks may send; those beyond them finish the row that they have."""
        self._tasks: list[asyncio.Task[None]] = []
        self._parked: list[asyncio.Future[None]] = []
        self._in_flight = 0
        """Requests in flight, of one or several rows each."""
        self._rows_in_flight = 0
        self._server_error: InflightError | None = None
        """What went wrong with the server itself, since it came up."""
        self._wakeup = asyncio.Event()
        self._last_answer_at = 0.0
        """When the server last answered a row, or refused one for a reason of the row's own."""
        self._last_refusal = 0.0
        self._rejects_probe = False
        """Whether the server refused even a simple probe, and has answered none since."""
        self._probes = 0
        self._isolated: frozenset[int] = frozenset()
        """Numbers of rows that must not be sent with others."""
        self._not_accepted: list[Row] = []
        """Those of them that the server did not accept."""
        self._crashed_rows: list[Row] = []
        self._engine_died = False
        self._down_since = 0.0
        self._was_ready = False
        self._ready_since = 0.0
        self._quick_crashes = 0

    async def run(self, on_task_done: Callable[[asyncio.Task[None]], None]) -> None:
        """Give the server rows while it is up, until cancelled or until it is rejected.

        `on_task_done` is called with each task that sends rows and has ended.
        """
        self._down_since = _now()
        try:
            while self.rejected is None and await self._connect():
                load_polls, next_load, next_build = 0, 0.0, _now() + _BUILD_SECONDS
                self._server_error = None
                self._wakeup.clear()
                while self.rejected is None and self._server_error is None:
                    now = _now()
                    if now >= next_load:
                        load_polls += 1
                        await self._poll_load()
                        next_load = now + (_TICK_SECONDS if load_polls < _INITIAL_LOAD_POLLS else _LOAD_SECONDS)
                    if now >= next_build:
                        next_build = now + _BUILD_SECONDS
                        await self._poll_build()
                    if self.rejected is None and (group := self._next_group(now)) is not None:
                        await self._try_group(group)
                        continue
                    self._set_slots(0 if self._limit.paused(now) else self._limit.limit)
                    while len(self._tasks) < self._slots:
                        task = asyncio.ensure_future(self._send_rows(len(self._tasks)))
                        task.add_done_callback(on_task_done)
                        self._tasks.append(task)
                    await self._tick()
                self.up = False
                self.last_error = self._server_error
                self._slots = 0
                self._down_since = _now()
                await self._await_idle()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def status(self) -> ServerStatus:
        """Return the server's status for the progress display."""
        limit = self._limit.limit * self._rows_per_request
        return ServerStatus(name=self.name, up=self.up, in_flight=self._rows_in_flight, concurrency_limit=limit)

    def last_activity(self, now: float) -> float:
        """Return when it last answered a row; now, if it is working on some."""
        busy = self.up and self._in_flight > 0 and now - self._last_refusal > _SLOW_SECONDS
        return now if busy else self._last_answer_at

    def is_unavailable(self, now: float) -> bool:
        """Return whether it has been down for so long that other servers should take its rows."""
        return self.rejected is not None or (not self.up and now - self._down_since > _UNAVAILABLE_SECONDS)

    async def _connect(self) -> bool:
        """Ask until the server is up and has the job's model. Returns False if it was rejected."""
        pause = _PROBE_WAIT_INITIAL
        reported = ""
        while True:
            problem = await self._probe()
            if self.rejected is not None:
                return False
            if problem is None:
                if reported:
                    self._on_message(f"{self.name} answers.")
                self.up = self._was_ready = True
                self._ready_since = _now()
                return True
            if classify_failure(problem) is FailureKind.REJECTED or (
                problem.code == "host_not_found" and not self._was_ready
            ):
                self._reject(BatchError(str(problem), problem.code))
                return False
            if problem.code != reported:
                reported = problem.code
                self._on_message(f"{self.name} does not answer; the job keeps trying: {problem}")
            self.last_error = problem
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(max(pause, (_now() - self._down_since) * _PROBE_DOWNTIME_FRACTION), _PROBE_WAIT_MAX)

    async def _probe(self) -> InflightError | None:
        """Return why the server cannot answer, if it cannot."""
        try:
            await self._verify_build()
            if self.rejected is None and not await self._backend.ready():
                return InflightError("the model is not ready", "model_not_ready")
            if self.rejected is None and (self._rejects_probe or self._check_dimensions is not None):
                return await self._probe_answer()
        except InflightError as error:
            return error
        return None

    async def _verify_build(self) -> None:
        """Reject the server if it has another model than the job; someone may have deployed it at this address."""
        build = await self._backend.build()
        try:
            self._check_build(build)
        except BatchError as error:
            self._reject_mismatch(error)

    def _reject_mismatch(self, error: BatchError) -> None:
        """Reject the server if it is not the job's. Raises other errors, which are the job's own."""
        if error.code != "job_mismatch":
            raise error
        self._reject(error)

    async def _tick(self) -> None:
        """Wait for a moment, or until there is an error."""
        try:
            async with asyncio.timeout(_TICK_SECONDS):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        self._wakeup.clear()

    async def _poll_load(self) -> None:
        try:
            load = await self._backend.load()
        except InflightError:
            self._limit.load_unknown()
        else:
            self._limit.observe(load, self._in_flight, _now())

    async def _poll_build(self) -> None:
        try:
            await self._verify_build()
        except InflightError as error:
            if classify_failure(error) is FailureKind.REJECTED:
                self._reject(BatchError(str(error), error.code))
            # otherwise a row finds the error, if it lasts

    async def _await_idle(self) -> None:
        """Wait until nothing is in flight at a server that went down, and hand over what was."""
        until = _now() + _IDLE_TIMEOUT
        while self._in_flight and _now() < until:  # noqa: ASYNC110  rare, so no event for each row's end
            await asyncio.sleep(_TICK_SECONDS / 2)
        self._poison_rows.add_crash(self.name, self._take_crashed()[0])
        await asyncio.sleep(_AFTER_CRASH_SECONDS)

    def _reject(self, error: BatchError) -> None:
        self.rejected = error
        self.up = False
        self._slots = 0
        self._on_message(f"{self.name} is no longer used: {error}")

    def _next_group(self, now: float) -> SuspectGroup | None:
        if self._poison_rows.empty or self._queue.stopped or self._limit.paused(now):
            return None
        if self._quick_crashes >= _MAX_QUICK_CRASHES and now - self._ready_since < _CRASH_COOLDOWN_SECONDS:
            return None
        return self._poison_rows.next_group(self.name, self.endpoint_is_unavailable)

    async def _try_group(self, group: SuspectGroup) -> None:
        """Send the rows of a group, and no others, once nothing else is in flight here."""
        self._slots = 0
        while self._in_flight and self._server_error is None:  # noqa: ASYNC110  as in _await_idle
            await asyncio.sleep(_TICK_SECONDS / 2)
        if self._server_error is not None:
            self._poison_rows.put_back(group)
            return
        self._isolated = frozenset(row.number for row in group.rows)
        requests = self._queue.requests_of(group.rows, self._max_texts)
        tasks = [asyncio.ensure_future(self._send(rows)) for rows in requests]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        untaken, self._not_accepted, self._isolated = self._not_accepted, [], frozenset()
        if untaken:
            self._poison_rows.put_back(SuspectGroup(tuple(untaken), self.name))
        crashed, died = self._take_crashed()
        if crashed:
            self._quick_crashes = self._quick_crashes + 1 if _now() - self._ready_since < _CRASH_COOLDOWN_SECONDS else 0
        for row in self._poison_rows.add_group_crash(self.name, group, crashed, died):
            self._queue.finish(row, self._poison_rows.error_for(row), sent=0)

    def _set_slots(self, slots: int) -> None:
        """Let so many tasks send: one for each slot and not for each row, since rows are many."""
        grows, self._slots = slots > self._slots, slots
        if grows:
            parked, self._parked = self._parked, []
            for future in parked:
                if not future.done():
                    future.set_result(None)

    async def _send_rows(self, slot: int) -> None:
        """Send one row after another, while there is a slot for this task."""
        while True:
            while slot >= self._slots:
                future = asyncio.get_running_loop().create_future()
                self._parked.append(future)
                await future
            row = await self._queue.get()
            if row is None:
                return
            if slot < self._slots:
                await self._send(self._queue.with_more(row, self._max_texts))
            else:
                self._queue.put_back(row)

    async def _send(self, rows: Sequence[Row]) -> None:
        """Send rows once, as one request; what becomes of them then is up to the queue or the poison rows."""
        self._in_flight += 1
        self._rows_in_flight += len(rows)
        for row in rows:
            self._queue.mark_in_flight(row)
        request_id = f"{self._run_id}-{rows[0].number}-{self._queue.next_attempt(rows[0])}"
        unhandled = rows
        try:
            try:
                answers = await self._backend.send([row.request for row in rows], request_id)
            except InflightError as error:
                ambiguous = self._on_errors([(rows, error)])
            else:
                ambiguous = self._on_answers(rows, answers)
            unhandled = [row for some, _ in ambiguous for row in some]
            if ambiguous and (problem := await self._probe_answer()) is not None:
                self._on_error(unhandled, problem, classify_failure(problem))
            else:
                for some, refusal in ambiguous:
                    self._on_error(some, refusal, FailureKind.AMBIGUOUS)
        except asyncio.CancelledError:  # the server is rejected, or the run ends
            if not self._queue.stopped:
                self._requeue(unhandled)
            raise
        finally:
            self._in_flight -= 1
            self._rows_in_flight -= len(rows)
            for row in rows:
                self._queue.mark_ended(row)

    async def _probe_answer(self) -> InflightError | None:
        """Send a simple probe; return why the server does not answer it, if it does not."""
        self._probes += 1
        try:
            (answer,) = await self._backend.send([self._probe_request], f"{self._run_id}-short-{self._probes}")
            if isinstance(answer, InflightError):
                raise answer
        except InflightError as error:
            kind = classify_failure(error)
            if kind not in (FailureKind.PERMANENT, FailureKind.AMBIGUOUS):
                return error
            if kind is FailureKind.PERMANENT and self._check_dimensions is not None:  # an option of the job
                self._reject(BatchError(str(error), error.code))
            self._rejects_probe = True
            return InflightError(f"it refuses a short text as well: {error}", "model_not_ready")
        self._rejects_probe = False
        if isinstance(answer, Embeddings) and self._check_dimensions is not None:
            try:
                await asyncio.to_thread(self._check_dimensions, answer.dimensions)
            except BatchError as error:
                self._reject_mismatch(error)
        return None

    def _take_crashed(self) -> tuple[list[Row], bool]:
        """The rows that were in flight when the server went down, and whether it was its engine that died."""
        crashed, died = self._crashed_rows, self._engine_died
        self._crashed_rows, self._engine_died = [], False
        return crashed, died

    def _on_answers(self, rows: Sequence[Row], answers: Sequence[RowAnswer | InflightError]) -> list[_Failure]:
        """Finish the rows that were answered, and handle errors; return the ambiguous ones."""
        tokens = answered = 0
        failures: list[_Failure] = []
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, InflightError):
                failures.append(((row,), answer))
            else:
                answered += 1
                tokens += _tokens(answer)
                self._queue.finish(row, answer)
        if answered:
            self._last_answer_at = now = _now()
            self._limit.request_answered(tokens, now)
        return self._on_errors(failures)

    def _on_errors(self, failures: Sequence[_Failure]) -> list[_Failure]:
        """Handle errors, and return the ambiguous ones: perhaps they are the server's doing, which a probe shows."""
        ambiguous = []
        for rows, error in failures:
            why = classify_failure(error)
            if why is FailureKind.AMBIGUOUS:
                ambiguous.append((rows, error))
            else:
                self._on_error(rows, error, why)
        return ambiguous

    def _on_error(self, rows: Sequence[Row], error: InflightError, why: FailureKind) -> None:
        now = _now()
        if why in (FailureKind.PERMANENT, FailureKind.AMBIGUOUS, FailureKind.TRANSIENT):
            self._last_answer_at = now
            if len(rows) == 1:
                self._on_row_failure(rows[0], error, why)
                return
            for row in rows:  # any of them may be the cause
                self._queue.send_alone(row)
            self._requeue(rows)
            return
        self._last_refusal = now
        if why is FailureKind.OVERLOADED:
            self._limit.server_overloaded(self._in_flight, now)
            self._slots = 0
            self._requeue(rows)
            return
        self._server_error = error
        self._slots = 0
        self._wakeup.set()
        if why is FailureKind.CRASHED:
            self._crashed_rows += rows
            self._engine_died = self._engine_died or error.code == "engine_died"
            for row in rows:
                self._queue.count_attempt(row)
        else:
            self._requeue(rows)

    def _requeue(self, rows: Sequence[Row]) -> None:
        """Queue rows again that the server did not accept or answer in time, in their order."""
        for row in reversed(rows):
            if row.number in self._isolated:
                self._queue.count_attempt(row)
                self._not_accepted.append(row)
            else:
                self._queue.retry_later(row)

    def _on_row_failure(self, row: Row, error: InflightError, why: FailureKind) -> None:
        """Handle a failure of the row's own: retry it for a while if that may help."""
        if why is not FailureKind.TRANSIENT:
            self._queue.finish(row, error)
            return
        failures = self._queue.count_failure(row)
        if failures >= self._max_attempts:
            self._queue.finish(row, error)
        else:
            longest = min(_RETRY_WAIT_INITIAL * 2 ** (failures - 1), _RETRY_WAIT_MAX)
            self._queue.retry_later(row, longest * random.uniform(0.5, 1.0))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _probe_of(encode: EncodeSpec | None) -> RowRequest:
    """Return a simple request of the task."""
    if encode is None:
        return GenerateRequest("Hello", 1)
    if encode.task == "embed":
        return EmbedRequest(("Hello",), encode.input_type, encode.dimensions, encode.truncate)
    return ClassifyRequest("Hello") if encode.task == "classify" else RerankRequest("Hello", ("Hello",))


def _tokens(answer: RowAnswer) -> int:
    if isinstance(answer, Generation):
        return 0 if answer.usage is None else answer.usage.total_tokens
    return answer.total_tokens
