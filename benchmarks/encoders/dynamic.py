"""Dynamic batching by size and window, as Triton's scheduler does it: in order of arrival, whatever the lengths are.

The batcher waits for the first text, then until `size` texts wait or `window` seconds have passed since the first came,
and computes them padded to the longest. Triton itself would end a batch at the first text of another length, or hand
texts of all lengths to a model that pads them (`allow_ragged_batch`); this is the second.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from benchmarks.encoders.engine_loop import EngineLoop, Vectors


class DynamicBatcher:
    """A thread that batches the texts of many callers; close it with the context."""

    def __init__(self, engine: EngineLoop, size: int, window: float) -> None:
        self._engine, self._size, self._window = engine, size, window
        self._waiting: queue.Queue[tuple[str, Future[Vectors]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="dynamic-batcher", daemon=True)

    def __enter__(self) -> DynamicBatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    def embed(self, texts: Sequence[str], clients: int) -> list[Vectors]:
        """Return the vectors of texts, which so many callers send one at a time, each after its last answer."""

        def one(text: str) -> Vectors:
            answer: Future[Vectors] = Future()
            self._waiting.put((text, answer))
            return answer.result()

        with ThreadPoolExecutor(clients) as callers:
            return list(callers.map(one, texts))

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, until = [first], time.monotonic() + self._window
            while len(batch) < self._size:
                try:
                    one = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                if one is None:
                    self._waiting.put(None)
                    break
                batch.append(one)
            rows = self._engine.compute(self._engine.tokenize([text for text, _ in batch]))
            for (_, answer), row in zip(batch, rows, strict=True):
                answer.set_result(row)
