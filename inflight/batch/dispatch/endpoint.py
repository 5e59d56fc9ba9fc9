"""One server of a job: which rows it gets, and what becomes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inflight_client import InflightError

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.concurrency_limit import INITIAL_LIMIT, MAX_LIMIT, AdaptiveLimit
from inflight.batch.dispatch.failure_kind import FailureKind, classify_failure
from inflight.batch.dispatch.poison_rows import PoisonRowFinder, SuspectGroup
from inflight.batch.dispatch.row_queue import RowQueue
from inflight.batch.dispatch.server_health import ServerHealth
from inflight.batch.dispatch.task_slots import TaskSlots
from inflight.batch.job.rows import GenerateRequest, Row, RowAnswer, RowRequest, answer_tokens
from inflight.batch.job.spec import EncodeSpec, RunOptions
from inflight.batch.reporting.progress import ServerStatus
from inflight.batch.row_formats.answer_check import answer_problem

_TICK_SECONDS = 0.1
_LOAD_SECONDS = 1.0
_INITIAL_LOAD_POLLS = 10
"""Number of initial ticks with a load reading each, when a server starts."""
_BUILD_SECONDS = 15.0
_IDLE_TIMEOUT = 60.0
"""Waited for what is still in flight at a server that went down; then the rows of a rejected server go to others."""
_AFTER_CRASH_SECONDS = 0.5
"""Seconds after a crash during which a server may still report that it is ready."""
_RETRY_WAIT_INITIAL, _RETRY_WAIT_MAX = 0.5, 60.0
_WORTH_SAYING = 5
"""Failures of a row after which the job says why, of one row a minute."""
_INITIAL_REQUESTS, _MAX_REQUESTS, _MAX_AUDIOS = 4, 256, 16
"""Requests in flight of encoders' tasks, where each has many texts or blocks: first, and at most by default."""
_SLOW_SECONDS = 1.0
"""A server that takes this long for a row without an error is busy with it."""
_MAX_QUICK_CRASHES = 3
_CRASH_COOLDOWN_SECONDS = 12.0
"""A supervisor gives up a server that crashes again and again within its first ten seconds. So after some crashes under
suspects the server does other work for so long before the next group is tried."""

_Failure = tuple[Sequence[Row], InflightError]
"""Rows, and the error that all of them had together."""


@dataclass
class _Crash:
    """The rows that were in flight when the server went down, and whether it was its engine that died."""

    rows: list[Row] = field(default_factory=list)
    engine_died: bool = False


@dataclass
class _Trial:
    """The numbers of rows that must not be sent with others, and those of these rows that the server did not accept."""

    numbers: frozenset[int] = frozenset()
    not_accepted: list[Row] = field(default_factory=list)


@dataclass
class _Traffic:
    """Requests in flight, of one or several rows each, and when the server last answered or refused a row."""

    requests: int = 0
    rows: int = 0
    answered_at: float = 0.0
    """When it last answered a row, or refused one for a reason of the row's own."""
    refused_at: float = 0.0


class Endpoint:
    """Sends rows to one server. `health` says whether it is up, and whether it was rejected.

    `is_unavailable` says of a server's name whether others should do what waits for it. `encode` is the job's; None for
    the task `generate`. See ServerHealth for the other arguments.
    """

    def __init__(
        self,
        backend: Backend,
        options: RunOptions,
        queue: RowQueue,
        poison_rows: PoisonRowFinder,
        is_unavailable: Callable[[str], bool],
        check_build: Callable[[str], None],
        on_message: Callable[[str], None],
        run_id: str,
        encode: EncodeSpec | None = None,
        check_dimensions: Callable[[int], None] | None = None,
    ) -> None:
        probe = GenerateRequest("Hello", 1, is_probe=True) if encode is None else encode.sample()
        self.health = ServerHealth(backend, probe, run_id, check_build, check_dimensions, on_message)
        self._backend, self._queue, self._poison_rows, self._options = backend, queue, poison_rows, options
        self._is_unavailable, self._run_id = is_unavailable, run_id
        self._on_message, self._silent_until = on_message, 0.0
        together = encode is not None and encode.task in ("embed", "classify", "text2text")
        generates = encode is None or encode.task == "score"  # by the same engine
        transcribes = encode is not None and encode.task == "transcribe"
        self._limit = AdaptiveLimit(
            options.concurrency or (MAX_LIMIT if generates else _MAX_AUDIOS if transcribes else _MAX_REQUESTS),
            INITIAL_LIMIT if generates else _INITIAL_REQUESTS,
        )
        self._rows_per_request = options.texts_per_request if together else 1
        """Rows in a full request."""
        self._slots: TaskSlots
        self._failure: asyncio.Future[InflightError]
        """What went wrong with the server itself, since it came up."""
        self._traffic = _Traffic()
        self._trial, self._crash = _Trial(), _Crash()
        self._quick_crashes = 0
        self._share = 1.0
        """The part of the limit that is used now."""

    def set_pace(self, priority: int, share: float) -> None:
        """Send rows with this priority, or only a share of what the server could take if that holds back nothing."""
        self._share = 1.0 if self._backend.prioritize(priority) and priority < 0 else share

    async def run(self, on_task_done: Callable[[asyncio.Task[None]], None]) -> None:
        """Give the server rows while it is up, until cancelled or until it is rejected.

        `on_task_done` is called with each task that sends rows and has ended.
        """
        self._slots = TaskSlots(self._send_next, on_task_done)
        self.health.went_down(None)
        try:
            while await self.health.connect():
                self._failure = asyncio.get_running_loop().create_future()
                await self._give_rows()
                self._slots.resize(0)
                self.health.went_down(self._failure.result() if self._failure.done() else None)
                await self._await_idle()
                if self.health.rejected is not None:
                    return
        finally:
            await self._slots.close()

    async def _give_rows(self) -> None:
        """Keep the server busy until it fails or is rejected."""
        load_polls, next_load, next_build = 0, 0.0, _now() + _BUILD_SECONDS
        while self.health.rejected is None and not self._failure.done():
            now = _now()
            if now >= next_load:
                load_polls += 1
                await self._poll_load()
                next_load = now + (_TICK_SECONDS if load_polls < _INITIAL_LOAD_POLLS else _LOAD_SECONDS)
            if now >= next_build:
                next_build = now + _BUILD_SECONDS
                await self.health.check_again()
            if self.health.rejected is None and (group := self._next_group(now)) is not None:
                await self._try_group(group)
                continue
            self._slots.resize(0 if self._limit.paused(now) else self._places)
            await asyncio.wait((self._failure,), timeout=_TICK_SECONDS)

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def _places(self) -> int:
        """The most requests in flight now."""
        return max(1, round(self._limit.limit * self._share))

    def status(self) -> ServerStatus:
        """Return the server's status for the progress display."""
        limit = self._places * self._rows_per_request
        up, rows = self.health.up, self._traffic.rows
        return ServerStatus(name=self.name, up=up, in_flight=rows, concurrency_limit=limit)

    def last_activity(self, now: float) -> float:
        """Return when it last answered a row; now, if it is working on some."""
        busy = self.health.up and self._traffic.requests > 0 and now - self._traffic.refused_at > _SLOW_SECONDS
        return now if busy else self._traffic.answered_at

    async def _poll_load(self) -> None:
        try:
            load = await self._backend.load()
        except InflightError:
            self._limit.load_unknown()
        else:
            self._limit.observe(load, self._traffic.requests, _now())

    async def _await_idle(self) -> None:
        """Wait until nothing is in flight at a server that went down, and hand over what was."""
        until = _now() + _IDLE_TIMEOUT
        while self._traffic.requests and _now() < until:  # noqa: ASYNC110  rare, so no event for each row's end
            await asyncio.sleep(_TICK_SECONDS / 2)
        self._poison_rows.add_crash(self.name, self._take_crash().rows)
        await asyncio.sleep(_AFTER_CRASH_SECONDS)

    def _next_group(self, now: float) -> SuspectGroup | None:
        if self._poison_rows.empty or self._queue.stopped or self._limit.paused(now):
            return None
        if self._quick_crashes >= _MAX_QUICK_CRASHES and now - self.health.ready_since < _CRASH_COOLDOWN_SECONDS:
            return None
        return self._poison_rows.next_group(self.name, self._is_unavailable)

    async def _try_group(self, group: SuspectGroup) -> None:
        """Send the rows of a group, and no others, once nothing else is in flight here."""
        self._slots.resize(0)
        while self._traffic.requests and not self._failure.done():  # noqa: ASYNC110  as in _await_idle
            await asyncio.sleep(_TICK_SECONDS / 2)
        if self._failure.done():
            self._poison_rows.put_back(group)
            return
        self._trial = _Trial(frozenset(row.number for row in group.rows))
        requests = self._queue.requests_of(group.rows, self._options.texts_per_request)
        tasks = [asyncio.ensure_future(self._send(rows)) for rows in requests]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        trial, self._trial = self._trial, _Trial()
        if trial.not_accepted:
            self._poison_rows.put_back(SuspectGroup(tuple(trial.not_accepted), self.name))
        crash = self._take_crash()
        if crash.rows:
            quick = _now() - self.health.ready_since < _CRASH_COOLDOWN_SECONDS
            self._quick_crashes = self._quick_crashes + 1 if quick else 0
        for row in self._poison_rows.add_group_crash(self.name, group, crash.rows, crash.engine_died):
            self._queue.finish(row, self._poison_rows.error_for(row), sent=0)

    async def _send_next(self, has_slot: Callable[[], bool]) -> bool:
        """Send the next row; return False at the end of the job."""
        row = await self._queue.get()
        if row is None:
            return False
        if has_slot():
            await self._send(self._queue.with_more(row, self._options.texts_per_request))
        else:
            self._queue.put_back(row)
        return True

    async def _send(self, rows: Sequence[Row]) -> None:
        """Send rows once, as one request; what becomes of them then is up to the queue or the poison rows."""
        self._traffic.requests += 1
        self._traffic.rows += len(rows)
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
            if ambiguous and (problem := await self._probe()) is not None:
                self._on_error(unhandled, problem, classify_failure(problem))
            else:
                for some, refusal in ambiguous:
                    self._on_error(some, refusal, FailureKind.AMBIGUOUS)
        except asyncio.CancelledError:  # the server is rejected, or the run ends
            if not self._queue.stopped:
                self._requeue(unhandled)
            raise
        finally:
            self._traffic.requests -= 1
            self._traffic.rows -= len(rows)
            for row in rows:
                self._queue.mark_ended(row)

    async def _probe(self) -> InflightError | None:
        problem = await self.health.probe()
        if self.health.rejected is not None:
            self._slots.resize(0)
        return problem

    def _take_crash(self) -> _Crash:
        crash, self._crash = self._crash, _Crash()
        return crash

    def _on_answers(self, rows: Sequence[Row], answers: Sequence[RowAnswer | InflightError]) -> list[_Failure]:
        """Finish the rows that were answered, and handle errors; return the ambiguous ones."""
        tokens = answered = 0
        failures: list[_Failure] = []
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, InflightError):
                failures.append(((row,), answer))
                continue
            answered += 1
            spent = answer_tokens(answer)
            tokens += sum(spent)
            if (problem := answer_problem(row.request, answer)) is None:
                self._queue.finish(row, answer)
            else:
                self._queue.add_spent(row, spent)
                failures.append(((row,), problem))
        if answered:
            self._traffic.answered_at = now = _now()
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
            self._traffic.answered_at = now
            if len(rows) == 1:
                self._on_row_failure(rows[0], error, why)
                return
            for row in rows:  # any of them may be the cause
                self._queue.send_alone(row)
            self._requeue(rows)
            return
        self._traffic.refused_at = now
        self._slots.resize(0)
        if why is FailureKind.OVERLOADED:
            self._limit.server_overloaded(self._traffic.requests, now, error.retry_after or 0.0)
            self._requeue(rows)
            return
        if not self._failure.done():
            self._failure.set_result(error)
        if why is FailureKind.CRASHED:
            self._crash.rows += rows
            self._crash.engine_died = self._crash.engine_died or error.code == "engine_died"
            for row in rows:
                self._queue.count_attempt(row)
        else:
            self._requeue(rows)

    def _requeue(self, rows: Sequence[Row]) -> None:
        """Queue rows again that the server did not accept or answer in time, in their order."""
        for row in reversed(rows):
            if row.number in self._trial.numbers:
                self._queue.count_attempt(row)
                self._trial.not_accepted.append(row)
            else:
                self._queue.retry_later(row)

    def _on_row_failure(self, row: Row, error: InflightError, why: FailureKind) -> None:
        """Handle a failure of the row's own: retry it for a while if that may help."""
        if why is not FailureKind.TRANSIENT or (error.code == "answer_invalid" and not _may_differ(row.request)):
            self._queue.finish(row, error)
            return
        failures = self._queue.count_failure(row)
        if failures >= self._options.max_attempts:
            self._queue.finish(row, error)
        else:
            if failures >= _WORTH_SAYING and _now() >= self._silent_until:
                self._silent_until = _now() + _RETRY_WAIT_MAX
                self._on_message(
                    f"Row {row.id} has failed {failures} times of at most {self._options.max_attempts}: {error}"
                )
            longest = min(_RETRY_WAIT_INITIAL * 2 ** (failures - 1), _RETRY_WAIT_MAX)
            self._queue.retry_later(row, longest * random.uniform(0.5, 1.0))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _may_differ(request: RowRequest) -> bool:
    """Return whether another attempt may have another answer, and is wanted."""
    return isinstance(request, GenerateRequest) and request.retries_invalid and not request.repeatable
