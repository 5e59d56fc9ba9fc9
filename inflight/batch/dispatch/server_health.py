"""Whether a server of a job is up, and whether it is the job's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count

from inflight_client import InflightError
from inflight_client.encodings import Embeddings

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.failure_kind import FailureKind, classify_failure
from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowRequest

_PROBE_WAIT_INITIAL, _PROBE_WAIT_MAX = 0.25, 15.0
_PROBE_DOWNTIME_FRACTION = 0.2
"""Pause before the next probe, as a fraction of the time that a server has been down, so that pauses grow."""
_UNAVAILABLE_SECONDS = 60.0


class ServerHealth:
    """A server is down until `connect`, up until `went_down`, and rejected for good once it is not the job's.

    `check_build` is given the build of the server's model, and raises BatchError where that is not the job's; so is
    `check_dimensions` the size of its vectors. `on_message` gets sentences for people. `probe` is a simple request.
    """

    def __init__(
        self,
        backend: Backend,
        probe: RowRequest,
        run_id: str,
        check_build: Callable[[str], None],
        check_dimensions: Callable[[int], None] | None,
        on_message: Callable[[str], None],
    ) -> None:
        self.up = False
        self.rejected: BatchError | None = None
        """Why the server gets no row of this job any more."""
        self.last_error: InflightError | None = None
        self.ready_since = 0.0
        self._backend, self._probe_request = backend, probe
        self._probe_ids = (f"{run_id}-short-{number}" for number in count(1))
        self._check_build, self._check_dimensions, self._on_message = check_build, check_dimensions, on_message
        self._rejects_probe = False
        """Whether the server refused even a simple request, and has answered none since."""
        self._was_ready = False
        self._down_since = 0.0

    async def connect(self) -> bool:
        """Ask until the server is up and has the job's model. Returns False if it was rejected."""
        pause = _PROBE_WAIT_INITIAL
        reported = ""
        while True:
            problem = await self._problem()
            if self.rejected is not None:
                return False
            if problem is None:
                if reported:
                    self._on_message(f"{self._backend.name} answers.")
                self.up = self._was_ready = True
                self.ready_since = _now()
                return True
            if classify_failure(problem) is FailureKind.REJECTED or (
                problem.code == "host_not_found" and not self._was_ready
            ):
                self._reject(BatchError(str(problem), problem.code))
                return False
            if problem.code != reported:
                reported = problem.code
                self._on_message(f"{self._backend.name} does not answer; the job keeps trying: {problem}")
            self.last_error = problem
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(max(pause, (_now() - self._down_since) * _PROBE_DOWNTIME_FRACTION), _PROBE_WAIT_MAX)

    def went_down(self, error: InflightError | None) -> None:
        """Note that the server failed; None: it was rejected, or is new."""
        self.up = False
        self.last_error = error
        self._down_since = _now()
        if error is not None and classify_failure(error) is FailureKind.REJECTED:
            self._rejects_probe = True  # what the server says of itself does not show that, so a simple request must

    def is_unavailable(self, now: float) -> bool:
        """Return whether it has been down for so long that other servers should take its rows."""
        return self.rejected is not None or (not self.up and now - self._down_since > _UNAVAILABLE_SECONDS)

    async def check_again(self) -> None:
        """Reject the server if someone has deployed another model at its address."""
        try:
            await self._verify_build()
        except InflightError as error:
            if classify_failure(error) is FailureKind.REJECTED:
                self._reject(BatchError(str(error), error.code))
            # otherwise a row finds the error, if it lasts

    async def probe(self) -> InflightError | None:
        """Send a simple request; return why the server does not answer it, if it does not."""
        try:
            (answer,) = await self._backend.send([self._probe_request], next(self._probe_ids))
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

    async def _problem(self) -> InflightError | None:
        """Return why the server cannot answer, if it cannot."""
        try:
            await self._verify_build()
            if self.rejected is None and not await self._backend.ready():
                return InflightError("the model is not ready", "model_not_ready")
            if self.rejected is None and (self._rejects_probe or self._check_dimensions is not None):
                return await self.probe()
        except InflightError as error:
            return error
        return None

    async def _verify_build(self) -> None:
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

    def _reject(self, error: BatchError) -> None:
        self.rejected = error
        self.up = False
        self._on_message(f"{self._backend.name} is no longer used: {error}")


def _now() -> float:
    return asyncio.get_running_loop().time()
