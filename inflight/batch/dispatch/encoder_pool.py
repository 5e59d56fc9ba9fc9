"""The servers that embed or rerank for retrieval: which one is asked, and what is tried again."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

from inflight_client import InflightError

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.failure_kind import FailureKind, classify_failure
from inflight.batch.dispatch.poison_rows import LOSSES_PER_CRASH
from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowAnswer, RowRequest
from inflight.batch.job.spec import RunOptions, Task

_WAIT_INITIAL, _WAIT_MAX = 0.25, 15.0
_FINAL = (FailureKind.PERMANENT, FailureKind.AMBIGUOUS)
_MAY_BE_OF_A_TEXT = (*_FINAL, FailureKind.TRANSIENT)


class Outage:
    """How long a database or all servers of a task have not answered, and the waits between attempts."""

    def __init__(self, name: str, timeout: float, code: str, on_message: Callable[[str], None]) -> None:
        self._name, self._timeout, self._code, self._on_message = name, timeout, code, on_message
        self._down_since: float | None = None
        self._pause = _WAIT_INITIAL

    async def wait(self, reason: object) -> None:
        """Wait before the next attempt. Raises BatchError once the timeout is over."""
        now = asyncio.get_running_loop().time()
        if self._down_since is None:
            self._down_since = now
            self._on_message(f"{self._name} does not answer for retrieval; the job keeps trying: {reason}")
        if now - self._down_since > self._timeout:
            raise BatchError(
                f"{self._name} has not answered for {self._timeout:g} seconds ({reason}); start it, and resume the job",
                self._code,
            )
        pause, self._pause = self._pause, min(self._pause * 1.5, _WAIT_MAX)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    def answered(self) -> None:
        if self._down_since is not None:
            self._on_message(f"{self._name} answers.")
        self._down_since, self._pause = None, _WAIT_INITIAL


class Suspects:
    """Keeps a request that may be the cause of a crash apart from all others, of both tasks: one server may have both
    encoders."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._others = 0
        self._no_others = asyncio.Event()
        self._no_others.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Enter once no other request is in flight; those that come wait."""
        async with self._lock:
            await self._no_others.wait()
            yield

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """Enter once no suspect is in flight."""
        async with self._lock:
            self._others += 1
            self._no_others.clear()
        try:
            yield
        finally:
            self._others -= 1
            if not self._others:
                self._no_others.set()


class EncoderPool:
    """The servers of a task. One of them is asked, and the next one if it does not answer."""

    def __init__(
        self,
        task: Task,
        backends: Sequence[Backend],
        options: RunOptions,
        suspects: Suspects,
        bind_encoder: Callable[[Task, str], None],
        on_message: Callable[[str], None],
    ) -> None:
        self.all = tuple(backends)
        self._task, self._left, self._options = task, list(backends), options
        self._suspects, self._bind_encoder, self._on_message = suspects, bind_encoder, on_message
        names = ", ".join(dict.fromkeys(backend.name for backend in backends))
        self._outage = Outage(names, options.server_wait_timeout, "server_unreachable", on_message)
        self._checked: set[Backend] = set()
        """Servers whose build was compared since they last failed."""
        self._run_id = uuid.uuid4().hex

    async def send(self, requests: Sequence[RowRequest], alone: bool = False) -> list[RowAnswer | InflightError]:
        """Return the answer or the error of each request, as soon as a server answers. Raises BatchError if none takes
        any, or none answers within the wait timeout.

        `alone`: a crash is counted, as no other request is in flight. Otherwise these requests are sent alone after it.
        """
        failures = losses = 0
        while True:
            backend = self._left[0]
            try:
                if not await self._is_ours(backend):
                    continue
                async with nullcontext() if alone else self._suspects.beside_others():
                    answers = list(await backend.send(requests, f"{self._run_id}-{self._task}"))
                if len(answers) == 1 and isinstance(answers[0], InflightError):
                    raise answers[0]
            except InflightError as error:
                kind = classify_failure(error)
                if kind is FailureKind.REJECTED:
                    self._reject(backend, error)
                elif len(requests) > 1 and kind in _MAY_BE_OF_A_TEXT:
                    return [answer for request in requests for answer in await self.send([request], alone)]
                elif kind in _FINAL:
                    return [error]
                elif kind is FailureKind.TRANSIENT:
                    failures += 1
                    if failures >= self._options.max_attempts:
                        return [error]
                    await asyncio.sleep(min(_WAIT_INITIAL * 2**failures, _WAIT_MAX) * random.uniform(0.5, 1.0))
                else:
                    crashed = kind is FailureKind.CRASHED
                    if crashed and alone:
                        losses += LOSSES_PER_CRASH if error.code == "engine_died" else 1
                        crashes = losses // LOSSES_PER_CRASH
                        if crashes >= self._options.max_engine_crashes:
                            why = f"encoders crashed {crashes} times on it: {error}"
                            return [InflightError(why, "row_crashed_engine")]
                    self._turn_from(backend)
                    if crashed and not alone:
                        return await self._send_alone(requests)
                    await self._outage.wait(error)
                continue
            self._outage.answered()
            for place, answer in enumerate(answers):
                if isinstance(answer, InflightError) and classify_failure(answer) not in _FINAL:
                    answers[place] = (await self.send([requests[place]], alone))[0]
            return answers

    async def _send_alone(self, requests: Sequence[RowRequest]) -> list[RowAnswer | InflightError]:
        answers = []
        for request in requests:
            async with self._suspects.alone():
                answers += await self.send([request], alone=True)
        return answers

    async def _is_ours(self, backend: Backend) -> bool:
        """Return whether a server has the job's encoder; ask it unless it has answered since. Raises InflightError."""
        if backend in self._checked:
            return True
        build = await backend.build()
        try:
            self._bind_encoder(self._task, build)
        except BatchError as error:
            if error.code != "job_mismatch":
                raise
            self._reject(backend, error)
            return False
        self._checked.add(backend)
        return True

    def _turn_from(self, backend: Backend) -> None:
        """Ask the next server, and compare the build of this one again."""
        self._checked.discard(backend)
        if self._left[0] is backend:
            self._left.append(self._left.pop(0))

    def _reject(self, backend: Backend, error: Exception) -> None:
        """Ask a server no more. Raises BatchError if it was the last one."""
        code = getattr(error, "code", "unsupported_deployment")
        if backend in self._left and len(self._left) > 1:
            self._left.remove(backend)
            self._on_message(f"{backend.name} is no longer used to {self._task} for retrieval: {error}")
        elif backend in self._left:
            raise BatchError(
                f"{backend.name} can't {self._task} for retrieval: {error}; name a server with that encoder:"
                " --retrieve-server",
                code,
            )
