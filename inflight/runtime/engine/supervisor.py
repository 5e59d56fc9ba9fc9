"""EngineProcess: an `Engine` in a supervised child process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from inflight.common.request_error import RequestError
from inflight.runtime.engine.interface import AdapterLoaded, EngineOptions
from inflight.runtime.messages import EngineLimits, EngineStats, EventSink, FinishReason, GenerationRequest, TokenEvent
from inflight.runtime.worker_process import WorkerProcess, exit_reason

RESTART_DELAY_S = 5
"""Seconds between two attempts to start an engine that fails to load."""


class EngineProcess:
    """Starts the engine's worker process and waits until the model is loaded. Raises RuntimeError if loading fails.

    When the process dies, every open request ends at once with an error event. With `restart`, a new process is
    started, and requests are refused (`engine_restarting`) until it is ready; without, all requests are refused from
    then on, and `inflight serve` restarts the server. A step that raises ends the process too, with its traceback on
    stderr: the library's state is unknown after it. However the process ends, its whole process tree ends with it.
    """

    def __init__(
        self, options: EngineOptions, restart: bool = False, report: Callable[[str], None] = lambda line: None
    ) -> None:
        self._options = options
        self._restart = restart
        self._report = report
        self._handles = count(1)
        self._sinks: dict[int, EventSink] = {}
        self._stats_futures: deque[Future[EngineStats]] = deque()
        self._adapters: dict[str, Future[int]] = {}
        # Guards sending, so that no message goes to a process that is being replaced. The holder may wait for the child
        # to read, and the child for the reader thread to take its events: so the reader thread never sends.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._refusal: str | None = None
        self.undelivered = 0
        """How many events of the same step follow the one that is being delivered."""
        self._start()
        self._reader = threading.Thread(target=self._read, name="engine-events", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._worker.pid

    def submit(self, request: GenerationRequest, on_event: EventSink) -> int:
        self.limits.check(request)
        with self._lock:
            self._check_open()
            handle = next(self._handles)
            self._sinks[handle] = on_event
            self._send("submit", (handle, request))
        return handle

    def cancel(self, handle: int) -> None:
        with self._lock:
            if handle in self._sinks:
                self._send("cancel", handle)

    def stats(self) -> EngineStats:
        asked: Future[EngineStats] = Future()
        with self._lock:
            self._check_open()
            self._stats_futures.append(asked)
            self._send("stats", None)
        return asked.result()

    def load_adapter(self, path: str) -> Future[int]:
        """Return the number of a LoRA adapter that is not among the options', once the process has loaded it.

        The future raises RequestError `invalid_parameter` if it can't be used. A new process has it no longer.
        """
        with self._lock:
            self._check_open()
            number = self._adapters.get(path)
            if number is None:
                number = self._adapters[path] = Future()
                self._send("adapter", path)
        return number

    def close(self) -> None:
        """End the process; running requests are cancelled without further events."""
        with self._lock:
            self._closing.set()
            self._refusal = "the engine is closed"
            self._worker.shut_down_connection()
        self._worker.end(timeout=10)
        self._reader.join(timeout=10)
        self._worker.connection.close()

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise RequestError(self._refusal, "engine_restarting")

    def _start(self) -> None:
        with self._lock:
            self._worker = WorkerProcess("inflight.runtime.engine.worker")
            if self._closing.is_set():
                self._worker.shut_down_connection()
        try:
            self._worker.connection.send(self._options)
            answer: EngineLimits | str = self._worker.connection.recv()
        except (EOFError, OSError):
            answer = f"its process ended with {exit_reason(self._worker.wait_and_reap())}"
        if isinstance(answer, str):
            with self._lock:
                self._worker.connection.close()
            self._worker.wait_and_reap()
            raise RuntimeError(f"the engine can't load {self._options.model_dir}: {answer}")
        self.limits = answer
        self.last_stats = self._idle_stats()
        """The engine's latest statistics; those of an idle engine before the first, and after its process has died."""

    def _idle_stats(self) -> EngineStats:
        return EngineStats(waiting=0, running=0, kv_blocks_reserved=0, kv_blocks=self.limits.kv_blocks, steps=0)

    def _send(self, command: str, argument: object) -> None:
        try:
            self._worker.connection.send((command, argument))
        except OSError:
            pass  # the reader thread finds the same death and ends every request

    def _read(self) -> None:
        """Deliver the child's events and replace a child that died; return once closed or without restarts."""
        while True:
            try:
                message = self._worker.connection.recv()
            except (EOFError, OSError):
                self._fail_open_requests()
                if self._restart and self._restart_process():
                    continue
                return
            if isinstance(message, EngineStats):
                self._stats_futures.popleft().set_result(message)
                continue
            if isinstance(message, AdapterLoaded):
                self._note_adapter(message)
                continue
            events, stats = message
            for position, event in enumerate(events, 1):
                self.undelivered = len(events) - position
                self._deliver(event)
            if stats is not None:
                self.last_stats = stats

    def _note_adapter(self, loaded: AdapterLoaded) -> None:
        if loaded.error is None:
            numbers = sum(each.done() for each in list(self._adapters.values()))
            self._adapters[loaded.path].set_result(len(self._options.adapters) + numbers + 1)
        else:  # it may be repaired, and named again
            self._adapters.pop(loaded.path).set_exception(RequestError(loaded.error, "invalid_parameter"))

    def _deliver(self, event: TokenEvent) -> None:
        ended = event.finish_reason is not None
        sink = self._sinks.pop(event.handle, None) if ended else self._sinks.get(event.handle)
        if sink is None:
            return
        try:
            sink(event)
        except Exception as error:  # an exception of one request's sink must not stop the events of others
            self._report(f"an event of request {event.handle} could not be delivered: {error}")
            if self._sinks.pop(event.handle, None):
                threading.Thread(target=self._cancel_orphan, args=(event.handle,), daemon=True).start()

    def _cancel_orphan(self, handle: int) -> None:
        with self._lock:
            self._send("cancel", handle)

    def _fail_open_requests(self) -> None:
        """End the requests that were open when the process died; those of a closed engine end without an event."""
        with self._lock:
            closed = self._closing.is_set()
            if not closed:
                self._refusal = "the engine died and is being started again; wait and send the request again"
            asked: list[Future[Any]] = [*self._stats_futures, *self._adapters.values()]
            self._stats_futures, self._adapters = deque(), {}
        cause = exit_reason(self._worker.wait_and_reap())
        for future in asked:
            if not future.done():
                future.set_exception(RequestError(f"the engine's process ended ({cause})", "engine_died"))
        if closed:
            return
        message = f"the engine's process died ({cause}) in the middle of the answer; send the request again"
        orphans = list(self._sinks)
        for handle in orphans:
            self._deliver(TokenEvent(handle, (), FinishReason.ERROR, error=(message, "engine_died")))
        self.last_stats = self._idle_stats()
        self._report(f"the engine's process {self.pid} died ({cause}); {len(orphans)} requests ended with an error")

    def _restart_process(self) -> bool:
        """Start a new process, with as many attempts as needed; return False if closed meanwhile."""
        while not self._closing.is_set():
            with self._lock:
                self._worker.connection.close()
            try:
                self._start()
            except RuntimeError as error:
                self._report(f"{error}; trying again in {RESTART_DELAY_S} s")
                self._closing.wait(RESTART_DELAY_S)
                continue
            with self._lock:
                if not self._closing.is_set():
                    self._refusal = None
            self._report(f"a new engine process {self.pid} is ready")
            return True
        return False
