"""Many prompts at once, for ordinary, blocking code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from inflight_client.call import Prompt
from inflight_client.errors import InflightError
from inflight_client.results import Generation
from inflight_client.stream import Stream

Outcome = Generation | InflightError
Open = Callable[[Prompt], Stream]

AHEAD = 4
"""How many times `concurrency` prompts are read before the first of them has been handed out: a slow one holds up no
others, and a million prompts never stand in memory."""


def checked_concurrency(value: int) -> int:
    """The number itself; InflightError for what can't be one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InflightError(f"concurrency is {value}; it must be a whole number, 1 or more", "invalid_parameter")
    return value


class Many:
    """Runs prompts in threads of its own, which end with it. Use `with`."""

    def __init__(self, start: Open, concurrency: int) -> None:
        self._start = start
        self._ahead = AHEAD * concurrency
        self._threads = ThreadPoolExecutor(concurrency, "generate_many")
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._ending = False

    def in_order(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, Outcome]]:
        """What came of each prompt, with its place, in the order of the prompts."""
        running: list[Future[Outcome]] = []
        source = enumerate(prompts)
        place = 0
        while True:
            self._fill(running, source)
            if not running:
                return
            yield place, running.pop(0).result()
            place += 1

    def as_completed(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, Outcome]]:
        """What came of each prompt, with its place, as soon as it is there."""
        running: list[Future[Outcome]] = []
        places: dict[Future[Outcome], int] = {}
        source = enumerate(prompts)
        while True:
            self._fill(running, source, places)
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.remove(future)
                yield places.pop(future), future.result()

    def __enter__(self) -> Many:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ending = True
            streams = list(self._streams)
        if streams:  # at once: over a dead network each takes a moment
            with ThreadPoolExecutor(len(streams), "generate_many_end") as ends:
                list(ends.map(Stream.close, streams))
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _fill(
        self,
        running: list[Future[Outcome]],
        source: Iterator[tuple[int, Prompt]],
        places: dict[Future[Outcome], int] | None = None,
    ) -> None:
        """Start prompts until enough are on their way, or there are no more."""
        while len(running) < self._ahead:
            found = next(source, None)
            if found is None:
                return
            future = self._threads.submit(self._run, found[1])
            running.append(future)
            if places is not None:
                places[future] = found[0]

    def _run(self, prompt: Prompt) -> Outcome:
        try:
            stream = self._start(prompt)
            with self._lock:
                if self._ending:
                    raise InflightError("the caller left before the prompt was sent", "cancelled")
                self._streams.add(stream)
            try:
                return stream.read()
            finally:
                with self._lock:
                    self._streams.discard(stream)
        except InflightError as error:
            return error
