"""An engine of CTranslate2 in a child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inflight.runtime.encoders.source_text import Text2TextSettings
from inflight.runtime.speech.clip import WhisperSettings
from inflight.runtime.worker_process import WorkerProcess, exit_reason

_MODULE = "inflight.runtime.backends.ctranslate2.worker"
_END_SECONDS = 10


class EngineProcess:
    """Computes one batch at a time, in one thread. Raises RuntimeError if the engine can't be loaded.

    A process that dies fails its batch, and the next batch starts a new one.
    """

    def __init__(
        self, settings: WhisperSettings | Text2TextSettings, report: Callable[[str], None] = lambda line: None
    ) -> None:
        self._settings, self._report = settings, report
        self._worker: WorkerProcess | None = self._start()

    @property
    def pid(self) -> int | None:
        """The process's id; None after it has died, until the next batch."""
        return None if self._worker is None else self._worker.pid

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the result of each input; the inputs are of one group.

        Raises RuntimeError for a batch that the library refuses or dies of, or if no new process can be started.
        """
        if self._worker is not None and self._worker.connection.poll():  # it says nothing unasked, so it is dead
            self._bury()
        if self._worker is None:
            self._worker = self._start()
            self._report(f"a new process {self._worker.pid} of the engine is ready")
        try:
            self._worker.connection.send(inputs)
            answer: list[Any] | str = self._worker.connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"the engine's process died ({self._bury()})") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.shut_down_connection()
            self._worker.end(_END_SECONDS)
            self._worker.connection.close()
            self._worker = None

    def _bury(self) -> str:
        """Forget the process, which has died, and return why it did."""
        worker, self._worker = self._worker, None
        assert worker is not None
        worker.connection.close()
        reason = exit_reason(worker.wait_and_reap())
        self._report(f"the process {worker.pid} of the engine died ({reason})")
        return reason

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(_MODULE)
        try:
            worker.connection.send(self._settings)
            failure: str | None = worker.connection.recv()
        except (EOFError, OSError):
            failure = f"its process ended with {exit_reason(worker.wait_and_reap())}"
        if failure is not None:
            worker.connection.close()
            worker.wait_and_reap()
            raise RuntimeError(f"the engine can't load {self._settings.engine_dir}: {failure}")
        return worker
