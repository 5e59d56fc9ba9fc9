"""Many prompts at once, for ordinary, blocking code."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

from inflight_client._sync.stream import Stream
from inflight_client.call import Prompt
from inflight_client.errors import InflightError
from inflight_client.result_order import (
    CLOSE_TIMEOUT,
    READ_AHEAD_FACTOR,
    Outcome,
    ResultOrder,
    SourceEnd,
)
from inflight_client.result_order import validate_prompts as validate_prompts

Prompts = Iterable[Prompt]
OpenStream = Callable[[Prompt], Stream]


class PromptRunner:
    """Runs prompts in threads of its own, once.

    One thread reads the prompts, each when there is a place for it, so a source that waits holds nobody up. The threads
    are daemons: neither a source nor a connection that never answers keeps the interpreter from ending.
    """

    def __init__(self, start: OpenStream, concurrency: int) -> None:
        self._start = start
        self._concurrency = concurrency
        self._free_slots = threading.Semaphore(concurrency)
        self._read_ahead = threading.Semaphore(READ_AHEAD_FACTOR * concurrency)
        self._queue: SimpleQueue[tuple[int, Prompt] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[int, Outcome | BaseException | SourceEnd]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._reader: threading.Thread | None = None
        self._reading = False
        self._count = 0
        self._streams: set[Stream] = set()
        self._closing = False
        self._process = os.getpid()

    def outcomes(self, prompts: Prompts, handout: ResultOrder) -> Generator[Any, None, None]:
        """What comes of the prompts, as the handout gives it; at the end, however it comes, nothing goes on."""
        # Left to the interpreter's last moments, closing would be too late: no thread runs any more.
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
        """Cancel what is on its way, and wait for its end, though not for ever. Twice is fine."""
        if self._closing or self._process != os.getpid():
            return
        self._closing = True
        until = time.monotonic() + CLOSE_TIMEOUT
        self._free_slots.release()
        self._read_ahead.release()
        for _ in range(self._concurrency):
            self._queue.put(None)
        threads = self._close_streams(until) + self._threads
        if self._reader is not None and not self._reading:
            threads.append(self._reader)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _close_streams(self, until: float) -> list[threading.Thread]:
        """All at once: over a dead network each takes a moment."""
        threads = []
        for stream in list(self._streams):
            try:
                threads.append(_start_thread(stream.close))
            except RuntimeError:  # the interpreter is ending, and starts no threads
                if time.monotonic() < until:
                    stream.close()
        return threads

    def _read(self, prompts: Prompts) -> None:
        try:
            self._read_on(iter(prompts))
        except BaseException as error:  # the caller's, to whom it goes
            self._results.put((self._count, SourceEnd(error)))
        else:
            self._results.put((self._count, SourceEnd()))
        finally:
            self._reading = False

    def _read_on(self, source: Iterator[Prompt]) -> None:
        """Read to the end, and start threads for the first prompts."""
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
        self._reading = True  # before the look at the end: who ends it waits for no source
        return not self._closing

    def _work(self) -> None:
        while not self._closing and (asked := self._queue.get()) is not None:
            place, prompt = asked
            self._results.put((place, self._run(prompt)))
            self._free_slots.release()

    def _run(self, prompt: Prompt) -> Outcome | BaseException:
        try:
            stream = self._start(prompt)
            self._streams.add(stream)
            try:
                if self._closing:  # which did not see the stream, perhaps
                    raise InflightError("the caller left before the prompt was sent", "cancelled")
                return stream.read()
            finally:
                self._streams.discard(stream)
        except BaseException as error:  # what is not ours is raised where its answer would stand
            return error


def _start_thread(work: Callable[..., None], *values: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=values, name="generate_many", daemon=True)
    thread.start()
    return thread
