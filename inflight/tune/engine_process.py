"""The process of an engine alone: `inflight.tune.engine_alone` starts it as `python -P -m`.

It reads one JSON object per line from standard input and answers each with one on standard output. The first line is
`{"options": EngineOptions, "kv_precision": ""}`, answered once the engine is loaded. Then come `{"speed": {...}}` and
`{"greedy": {...}}` with the arguments of the functions below. `{"error": sentence}` ends the process. Output of the
libraries goes to standard error.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TextIO

from inflight.common.process_guard import die_with_parent
from inflight.runtime.engine.interface import EngineOptions, load_model_runner
from inflight.runtime.messages import GenerationRequest, SamplingConfig


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    die_with_parent()
    try:
        for answer in _answers(sys.stdin):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    except Exception as error:
        traceback.print_exc()
        answers.write(json.dumps({"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}) + "\n")
        answers.flush()
        return 1
    # A normal exit with OpenVINO loaded takes seconds.
    sys.stderr.flush()
    os._exit(0)


def _answers(lines: TextIO) -> Iterator[dict[str, Any]]:
    first = json.loads(next(lines))
    engine = _LoadedEngine(EngineOptions(**first["options"]), first["kv_precision"])
    yield {}
    for line in lines:
        ((what, arguments),) = json.loads(line).items()
        yield engine.speed(**arguments) if what == "speed" else engine.greedy(**arguments)


class _LoadedEngine:
    def __init__(self, options: EngineOptions, kv_precision: str) -> None:
        extra = {"KV_CACHE_PRECISION": kv_precision} if kv_precision else {}
        self._engine = load_model_runner(replace(options, extra=extra))
        self._handles = itertools.count()

    def _start(self, prompt: list[int], max_tokens: int, **more: Any) -> int:
        handle = next(self._handles)
        self._engine.add(handle, GenerationRequest(tuple(prompt), max_tokens, **more))
        return handle

    def speed(
        self, requests: list[tuple[list[int], int]], users: int, seconds: float, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the output tokens per second, and the length of each step, with `users` requests always in flight.

        `requests` are prompts and the numbers of tokens to generate, used in turn. Those in flight first generate less,
        so that not all answers end at the same time. It counts once all of these have ended.
        """
        start = partial(self._start, sampling=SamplingConfig(**sampling))
        source, turns = random.Random(0), itertools.cycle(requests)
        first = {start(prompt, source.randint(1, tokens)) for prompt, tokens in itertools.islice(turns, users)}
        running, end = set(first), math.inf
        tokens, steps = 0, []
        while (started := time.perf_counter()) < end:
            outputs = list(self._engine.step())
            if not first:
                steps.append(time.perf_counter() - started)
            for output in outputs:
                tokens += len(output.token_ids) if steps else 0
                if output.finish_reason is not None:
                    running.remove(output.handle)
                    first.discard(output.handle)
                    running.add(start(*next(turns)))
            if not first and not steps:
                end = time.perf_counter() + seconds
        for handle in running:
            self._engine.remove(handle)
        return {"tokens_per_second": tokens / sum(steps), "steps": steps}

    def greedy(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Return the likeliest tokens after each prompt, with their log probabilities."""
        handles = [self._start(prompt, max_tokens, log_probs=True) for prompt in prompts]
        tokens: dict[int, list[int]] = {handle: [] for handle in handles}
        log_probs: dict[int, list[float]] = {handle: [] for handle in handles}
        running = set(handles)
        while running:
            for output in self._engine.step():
                tokens[output.handle] += output.token_ids
                log_probs[output.handle] += output.log_probs
                if output.finish_reason is not None:
                    running.remove(output.handle)
        return {"tokens": list(tokens.values()), "log_probs": list(log_probs.values())}


if __name__ == "__main__":
    sys.exit(main())
