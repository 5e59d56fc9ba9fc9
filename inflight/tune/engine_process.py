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
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from inflight.common.process_guard import die_with_parent
from inflight.runtime.engine.interface import EngineOptions


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
        import numpy as np
        import openvino

        from inflight.runtime.backends.openvino.generation_config import generation_config
        from inflight.runtime.backends.openvino.pipeline import make_pipeline
        from inflight.runtime.engine.manifest import EngineManifest
        from inflight.runtime.messages import GenerationRequest

        manifest = EngineManifest.from_directory(options.model_dir)
        if kv_precision:
            manifest.properties["KV_CACHE_PRECISION"] = kv_precision
        self._pipeline = make_pipeline(options, manifest)
        numbers = itertools.count()

        def start(prompt: list[int], max_tokens: int, log_probs: bool = False) -> Any:
            request = GenerationRequest(tuple(prompt), max_tokens, log_probs=log_probs)
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            return self._pipeline.add_request(next(numbers), ids, generation_config(request, options))

        self._start: Callable[..., Any] = start

    def speed(self, requests: list[tuple[list[int], int]], users: int, seconds: float) -> dict[str, Any]:
        """Return the output tokens per second, and the length of each step, with `users` requests always in flight.

        `requests` are prompts and the numbers of tokens to generate, used in turn. Those in flight first generate less,
        so that not all answers end at the same time. It counts once all of these have ended.
        """
        source, turns = random.Random(0), itertools.cycle(requests)
        running = [self._start(prompt, source.randint(1, tokens)) for prompt, tokens in itertools.islice(turns, users)]
        first, end = set(range(users)), math.inf
        tokens, steps = 0, []
        while (started := time.perf_counter()) < end:
            self._pipeline.step()
            if not first:
                steps.append(time.perf_counter() - started)
            for place, generation in enumerate(running):
                if generation.can_read():
                    for output in generation.read().values():
                        tokens += len(output.generated_ids) if steps else 0
                        if output.finish_reason.name != "NONE":
                            running[place] = self._start(*next(turns))
                            first.discard(place)
            if not first and not steps:
                end = time.perf_counter() + seconds
        for generation in running:
            generation.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return {"tokens_per_second": tokens / sum(steps), "steps": steps}

    def greedy(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Return the likeliest tokens after each prompt, with their log probabilities."""
        running = [self._start(prompt, max_tokens, log_probs=True) for prompt in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        outputs = [generation.read_all()[0] for generation in running]
        return {
            "tokens": [list(output.generated_ids) for output in outputs],
            "log_probs": [list(output.generated_log_probs) for output in outputs],
        }


if __name__ == "__main__":
    sys.exit(main())
