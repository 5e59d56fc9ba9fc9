"""Concurrent calls for many prompts or texts, for blocking code."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol

from inflight_client.call import Prompt
from inflight_client.errors import InflightError
from inflight_client.result_order import (
    CLOSE_TIMEOUT,
    READ_AHEAD_FACTOR,
    ResultOrder,
    SourceEnd,
)

Prompts = Iterable[Prompt]


class RunningCall(Protocol):
    """A call that is sent when its result is read; closing it, from any thread, cancels it."""

    def read(self) -> Any: ...
    def close(self) -> None: ...


class CallRunner:
    """Runs calls in its own threads, one for each prompt; for one use.

    One thread reads each prompt when a slot is free, so a source that waits blocks nothing else. The threads are
    daemons: a blocked source or connection does not keep the interpreter from exiting.
    """

    def __init__(self, start: Callable[[Any], RunningCall], concurrency: int) -> None:
        self._start = start
        self._concurrency = concurrency
        self._free_slots = threading.Semaphore(concurrency)
        self._read_ahead = threading.Semaphore(READ_AHEAD_FACTOR * concurrency)
        self._queue: SimpleQueue[tuple[int, Any] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._reader: threading.Thread | None = None
        self._reading = False
        self._count = 0
        self._calls: set[RunningCall] = set()
        self._closing = False
        self._process = os.getpid()

    def outcomes(self, prompts: Iterable[Any], handout: ResultOrder) -> Generator[Any, None, None]:
        """Yield the results in the order of `handout`; all requests end with the generator."""
        # At interpreter shutdown closing would be too late: threads no longer run.
        atexit.register(self.close)
        try:
            self._reader = _start_thread(self._read, prompts)
            while not handout.done:
                if self._process != os.getpid():
                    raise InflightError("these answers come to the process that asked for them", "client_forked")
                for outcome in handout.add(*self._results.get()):
                    self._read_ahead.release()
                    yield outcome
        finally:
            atexit.unregister(self.close)
            self.close()

    def close(self) -> None:
        """Cancel requests in flight and wait at most CLOSE_TIMEOUT for them. May be called twice."""
        if self._closing or self._process != os.getpid():
            return
        self._closing = True
        until = time.monotonic() + CLOSE_TIMEOUT
        self._free_slots.release()
        self._read_ahead.release()
        for _ in range(self._concurrency):
            self._queue.put(None)
        threads = self._close_calls(until) + self._threads
        if self._reader is not None and not self._reading:
            threads.append(self._reader)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _close_calls(self, until: float) -> list[threading.Thread]:
        """Close the calls in parallel, since each may be slow over a dead network."""
        threads = []
        for call in list(self._calls):
            try:
                threads.append(_start_thread(call.close))
            except RuntimeError:  # the interpreter is shutting down and starts no threads
                if time.monotonic() < until:
                    call.close()
        return threads

    def _read(self, prompts: Iterable[Any]) -> None:
        try:
            self._read_on(iter(prompts))
        except BaseException as error:  # from the caller's source; raised to the caller
            self._results.put((self._count, SourceEnd(error)))
        else:
            self._results.put((self._count, SourceEnd()))
        finally:
            self._reading = False

    def _read_on(self, source: Iterator[Any]) -> None:
        """Read all prompts and start threads for the first ones."""
        while self._wait_for_slot():
            try:
                prompt = next(source)
            except StopIteration:
                return
            self._queue.put((self._count, prompt))
            self._count += 1
            if self._count <= self._concurrency:
                self._threads.append(_start_thread(self._work))

    def _wait_for_slot(self) -> bool:
        self._reading = False
        self._free_slots.acquire()
        self._read_ahead.acquire()
        self._reading = True  # set before `_closing` is read: `close` does not wait for a source
        return not self._closing

    def _work(self) -> None:
        while not self._closing and (queued := self._queue.get()) is not None:
            place, prompt = queued
            self._results.put((place, self._run(prompt)))
            self._free_slots.release()

    def _run(self, prompt: Any) -> Any:
        try:
            call = self._start(prompt)
            self._calls.add(call)
            try:
                if self._closing:  # `close` may have missed the call
                    raise InflightError("the caller left before the prompt was sent", "cancelled")
                return call.read()
            finally:
                self._calls.discard(call)
        except BaseException as error:  # other exceptions are raised in place of the answer
            return error


def _start_thread(work: Callable[..., None], *values: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=values, name="inflight_client call", daemon=True)
    thread.start()
    return thread
