"""A deterministic engine: known tokens after known delays, and failures on request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from inflight.runtime.engine import EngineOptions, Progress
from inflight.runtime.messages import EngineLimits, FinishReason, GenerationRequest

NO_TOKEN = "-1"


class FakeStepper:
    """Answers with the prompt's tokens over and over, one a step; for tests and for measuring the way around.

    `extra` takes `step_seconds` and `prefill_seconds_per_token` (default 0), `vocabulary_size` (512) and
    `max_sequence_length` (4096); a prompt that begins with its `fail_token` makes the step that meets it raise an
    error, one that begins with its `die_token` kills the engine's process as SIGKILL does (default: none).
    """

    def __init__(self, options: EngineOptions) -> None:
        extra = options.extra
        self._step_seconds = float(extra.get("step_seconds", "0"))
        self._prefill_seconds_per_token = float(extra.get("prefill_seconds_per_token", "0"))
        self._fail_token = int(extra.get("fail_token", NO_TOKEN))
        self._die_token = int(extra.get("die_token", NO_TOKEN))
        self.limits = EngineLimits(
            vocabulary_size=int(extra.get("vocabulary_size", "512")),
            max_sequence_length=int(extra.get("max_sequence_length", "4096")),
            kv_block_tokens=32,
            kv_blocks=-(-options.kv_cache_tokens // 32),
            max_num_sequences=options.max_num_sequences,
        )
        self._running: dict[int, tuple[GenerationRequest, int]] = {}

    def check(self, request: GenerationRequest) -> None:
        """It can do whatever a request asks of it: nothing."""

    def ready(self, request: GenerationRequest) -> bool:
        return True

    def add(self, handle: int, request: GenerationRequest) -> None:
        self._running[handle] = (request, 0)

    def remove(self, handle: int) -> None:
        del self._running[handle]

    def step(self) -> Iterator[Progress]:
        new = [request for request, produced in self._running.values() if produced == 0]
        for request in new:
            if request.prompt_ids[0] == self._fail_token:
                raise RuntimeError("the fake engine failed because it was asked to")
            if request.prompt_ids[0] == self._die_token:
                os.kill(os.getpid(), signal.SIGKILL)
        prefill = self._prefill_seconds_per_token * sum(len(request.prompt_ids) for request in new)
        time.sleep(self._step_seconds + prefill)
        for handle, (request, produced) in list(self._running.items()):
            token = expected_token(request, produced)
            produced += 1
            self._running[handle] = (request, produced)
            if token in request.end_ids and produced > request.sampling.min_tokens:
                del self._running[handle]
                yield Progress(handle, (), FinishReason.STOP)
            elif produced == request.max_tokens:
                del self._running[handle]
                yield Progress(handle, (token,), FinishReason.LENGTH)
            else:
                yield Progress(handle, (token,))


def expected_token(request: GenerationRequest, position: int) -> int:
    """The token that the fake engine produces as number `position` (from 0) of its answer."""
    return request.prompt_ids[position % len(request.prompt_ids)]
