"""Sends rows to one server, each once, and sorts out by its cause what did not work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from inflight_client import InflightError
from inflight_client.results import Generation

from inflight.batch.backend import Backend
from inflight.batch.flow.causes import Cause, cause
from inflight.batch.flow.rows import Rows
from inflight.batch.flow.throttle import Throttle
from inflight.batch.job import Running
from inflight.batch.row import Ask, Row

_FIRST_RETRY, _LONGEST_RETRY = 0.5, 60.0
_SHORT = Ask("Hello", 1)
_SLOW_SECONDS = 1.0
"""A server that takes so long over a row without a complaint is at work on it."""


class Asker:
    """`halt` is called when the server should get no row just now: it is overloaded, or something is wrong with it."""

    def __init__(
        self,
        backend: Backend,
        running: Running,
        rows: Rows,
        throttle: Throttle,
        life: str,
        halt: Callable[[], None],
    ) -> None:
        self.in_flight = 0
        self.trouble: InflightError | None = None
        """What went wrong with the server itself; whoever mends that clears it."""
        self.heard = 0.0
        """When the server last answered a row, be it with a refusal that is the row's alone."""
        self._backend, self._rows, self._throttle = backend, rows, throttle
        self.refuses = False
        """Whether the server refused even what any model answers, and has answered no such thing since."""
        self._shorts = 0
        self._life, self._halt = life, halt
        self._tries = running.tries
        self.apart: frozenset[int] = frozenset()
        """Numbers of rows that are to stay away from others."""
        self.untaken: list[Row] = []
        """Of these, those that the server did not take."""
        self._complained = 0.0
        self._fallen: list[Row] = []
        self._died = False

    async def ask(self, row: Row) -> None:
        """Send a row; what becomes of it then is the rows' or the suspects' business."""
        rows = self._rows
        self.in_flight += 1
        rows.fly(row)
        try:
            answer = await self._answer(row)
            if isinstance(answer, InflightError):
                self._take(row, answer)
            else:
                self._take_answer(row, answer)
        except asyncio.CancelledError:  # the server is set aside, or all ends
            if not rows.stopped:
                self._give_back(row)
            raise
        finally:
            self.in_flight -= 1
            rows.landed(row)

    async def try_short(self) -> InflightError | None:
        """Ask what any model answers: why this one does not, if so."""
        self._shorts += 1
        try:
            await self._backend.ask(_SHORT, f"{self._life}-short-{self._shorts}")
        except InflightError as error:
            if cause(error) not in (Cause.FINAL, Cause.DOUBTFUL):
                return error
            self.refuses = True
            return InflightError(f"it refuses a short prompt as well: {error}", "model_not_ready")
        self.refuses = False
        return None

    def take_fallen(self) -> tuple[list[Row], bool]:
        """The rows that were in flight when the server fell, and whether it was its engine that died."""
        fallen, died = self._fallen, self._died
        self._fallen, self._died = [], False
        return fallen, died

    def at_work(self, now: float) -> bool:
        """Whether rows are in flight and nothing was refused for a while."""
        return self.in_flight > 0 and now - self._complained > _SLOW_SECONDS

    async def _answer(self, row: Row) -> Generation | InflightError:
        """Or why there is none: of a refusal that may be the server's own doing, what another request shows."""
        try:
            return await self._backend.ask(row.ask, f"{self._life}-{row.number}-{self._rows.attempt(row)}")
        except InflightError as error:
            if cause(error) is not Cause.DOUBTFUL:
                return error
            return await self.try_short() or error

    def _take_answer(self, row: Row, answer: Generation) -> None:
        self.heard = now = asyncio.get_running_loop().time()
        usage = answer.usage
        self._throttle.answered(0 if usage is None else usage.total_tokens, now)
        self._rows.end(row, answer)

    def _take(self, row: Row, error: InflightError) -> None:
        why = cause(error)
        now = asyncio.get_running_loop().time()
        if why in (Cause.FINAL, Cause.DOUBTFUL, Cause.PASSING):
            self.heard = now
            self._take_failure(row, error, why)
            return
        self._complained = now
        if why is Cause.BUSY:
            self._throttle.overloaded(self.in_flight, now)
            self._halt()
            self._give_back(row)
            return
        self.trouble = error
        self._halt()
        if why is Cause.FELL:
            self._fallen.append(row)
            self._died = self._died or error.code == "engine_died"
            self._rows.count(row)
        else:
            self._give_back(row)

    def _give_back(self, row: Row) -> None:
        """A row that the server did not take, or has not answered in time."""
        if row.number in self.apart:
            self._rows.count(row)
            self.untaken.append(row)
        else:
            self._rows.again(row)

    def _take_failure(self, row: Row, error: InflightError, why: Cause) -> None:
        """What is the row's own: tried again for a while, if that may help."""
        if why is not Cause.PASSING:
            self._rows.end(row, error)
            return
        failures = self._rows.failed(row)
        if failures >= self._tries:
            self._rows.end(row, error)
        else:
            longest = min(_FIRST_RETRY * 2 ** (failures - 1), _LONGEST_RETRY)
            self._rows.again(row, longest * random.uniform(0.5, 1.0))
