"""The engine alone in one process, with the scheduler settings of the served one: the baseline of end-to-end runs."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from inflight.runtime.engine.interface import EngineOptions


@dataclass(frozen=True)
class AloneRun:
    """One run of the bare engine: tokens per second, and the length of each of its steps in seconds."""

    tokens_per_second: float
    steps: list[float]


class EngineAlone:
    """A process that holds the bare engine, and uses no processor time between runs."""

    def __init__(self, options: EngineOptions) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, options), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def run(
        self, prompts: list[list[int]], max_tokens: int | Sequence[int], fields: Mapping[str, Any] | None = None
    ) -> AloneRun:
        """Generate for all prompts at once, as fast as the engine can; `max_tokens` is for all, or one per prompt.

        `fields` are further ones of the requests.
        """
        lengths = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
        self._connection.send((prompts, lengths, fields or {}))
        run: AloneRun = self._connection.recv()
        return run

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _work(connection: Connection, options: EngineOptions) -> None:
    from itertools import count

    from inflight.runtime.engine.interface import load_model_runner
    from inflight.runtime.messages import GenerationRequest

    engine, numbers = load_model_runner(options), count()
    connection.send("ready")
    while True:
        try:
            prompts, lengths, fields = connection.recv()
        except EOFError:
            return
        steps, tokens, started = [], 0, time.perf_counter()
        running = set()
        for ids, max_tokens in zip(prompts, lengths, strict=True):
            running.add(number := next(numbers))
            engine.add(number, GenerationRequest(tuple(ids), max_tokens, **fields))
        while running:
            step_started = time.perf_counter()
            outputs = list(engine.step())
            steps.append(time.perf_counter() - step_started)
            for output in outputs:
                tokens += len(output.token_ids)
                if output.finish_reason is not None:
                    running.remove(output.handle)
        connection.send(AloneRun(tokens / (time.perf_counter() - started), steps))
