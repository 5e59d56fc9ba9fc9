"""The event loop in which the LLM API produces answers, and the queue that passes them to another thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from typing import Any

from inflight.runtime.backends.llmapi.library import LlmApiLibrary
from inflight.runtime.backends.llmapi.output_reader import OutputReader
from inflight.runtime.engine.interface import StepOutput
from inflight.runtime.engine.request_queue import error_from_exception
from inflight.runtime.messages import FinishReason

HEALTH_PERIOD_S = 1.0
"""Interval of the library's health checks: the library may leave the answers of a dead worker open."""
SHUTDOWN_S = 5.0
"""How long the library may take to shut down; a dead one may block forever."""


class LlmEventLoop:
    """Runs `llm.generate_async` in a thread with an event loop, as the library requires.

    One other thread calls `add`, `remove` and `drain`. Each pass of the loop that produces output writes one byte to
    `arrivals`.
    """

    def __init__(self, llm: Any, library: LlmApiLibrary) -> None:
        self._llm = llm
        self._library = library
        self._outputs: deque[StepOutput] = deque()
        self._announced = False
        self._fatal_error: BaseException | None = None
        self._answers: dict[int, tuple[Any, asyncio.Task[None]]] = {}
        self.arrivals, self._wakeup = socket.socketpair()
        self.arrivals.setblocking(False)
        self._wakeup.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="llm-api", daemon=True)
        self._thread.start()

    def add(self, handle: int, arguments: dict[str, Any], reader: OutputReader) -> None:
        """Start an answer; an error comes as its last output."""
        self._loop.call_soon_threadsafe(self._start, handle, arguments, reader)

    def remove(self, handle: int) -> None:
        """Abort an answer; output produced before may still arrive."""
        self._loop.call_soon_threadsafe(self._abort, handle)

    def drain(self) -> list[StepOutput]:
        """Return all output since the last call. Raises RuntimeError once the library is dead."""
        try:
            self.arrivals.recv(4096)
        except BlockingIOError:
            pass
        if self._fatal_error is not None:
            words = " ".join(str(self._fatal_error).split()) or type(self._fatal_error).__name__
            raise RuntimeError(f"TensorRT-LLM has ended: {words}") from self._fatal_error
        return [self._outputs.popleft() for _ in range(len(self._outputs))]

    def close(self) -> None:
        """Shut the library down, unless it is dead; running requests end without an event."""
        if self._fatal_error is None:
            shutdown = threading.Thread(target=self._llm.shutdown, daemon=True)
            shutdown.start()
            shutdown.join(timeout=SHUTDOWN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=SHUTDOWN_S)
        self.arrivals.close()
        self._wakeup.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._monitor_health())
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _start(self, handle: int, arguments: dict[str, Any], reader: OutputReader) -> None:
        try:
            result = self._llm.generate_async(**arguments)
        except Exception as error:
            if self._library.ends_one_request(error) or self._is_healthy():
                self._emit(StepOutput(handle, (), FinishReason.ERROR, error=error_from_exception(error)))
            else:
                self._fail(error)
            return
        self._answers[handle] = (result, self._loop.create_task(self._follow(handle, result, reader)))

    async def _follow(self, handle: int, result: Any, reader: OutputReader) -> None:
        try:
            async for _ in result:
                progress = reader.read(result)
                if progress is None:
                    continue
                self._emit(progress)
                if progress.finish_reason is not None and not result.finished:
                    self._abort_result(result)
                    return
        except Exception as error:
            if self._library.ends_one_request(error):
                self._emit(StepOutput(handle, (), FinishReason.ERROR, error=error_from_exception(error)))
            elif not isinstance(error, RuntimeError) and self._is_healthy():
                # Reading the answer failed; the library still works.
                self._emit(StepOutput(handle, (), FinishReason.ERROR, error=error_from_exception(error)))
                self._abort_result(result)
            else:
                self._fail(error)
        finally:
            self._answers.pop(handle, None)

    def _abort(self, handle: int) -> None:
        answer = self._answers.pop(handle, None)
        if answer is None:
            return
        result, task = answer
        task.cancel()
        self._abort_result(result)

    def _abort_result(self, result: Any) -> None:
        try:
            result.abort()
        except Exception as error:
            self._fail(error)

    def _emit(self, progress: StepOutput) -> None:
        self._outputs.append(progress)
        if not self._announced:
            self._announced = True
            # One step wakes the answers of all its requests; one call announces all of them.
            self._loop.call_soon(self._announce)

    def _announce(self) -> None:
        self._announced = False
        try:
            self._wakeup.send(b"\0")
        except BlockingIOError:
            pass  # the byte of an earlier call is still unread

    def _fail(self, error: BaseException) -> None:
        self._fatal_error = self._fatal_error or error
        self._announce()

    async def _monitor_health(self) -> None:
        while self._fatal_error is None:
            await asyncio.sleep(HEALTH_PERIOD_S)
            if not self._is_healthy():
                self._fail(RuntimeError("one of its processes died, or it was shut down"))

    def _is_healthy(self) -> bool:
        try:
            return self._library.is_healthy(self._llm)
        except Exception as error:
            self._fail(error)
            return False
