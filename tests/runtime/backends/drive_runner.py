"""A model runner driven by hand, without the queue before it in an engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from inflight.runtime.engine.interface import ModelRunner, StepOutput
from inflight.runtime.messages import Beam, FinishReason, GenerationRequest, SpeculationStats

TIMEOUT = 120.0
"""Seconds in which everything asked of a tiny model has long ended."""


@dataclass
class CollectedOutput:
    """All that came of one request."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    prompt_log_probs: tuple[float, ...] = ()
    beams: tuple[Beam, ...] = ()
    reason: FinishReason | None = None
    error: tuple[str, str] | None = None
    speculation: SpeculationStats | None = None
    steps: int = 0

    def add(self, progress: StepOutput) -> None:
        assert self.reason is None, "something came after the last"
        self.token_ids += progress.token_ids
        self.log_probs += progress.log_probs
        self.prompt_log_probs = self.prompt_log_probs or progress.prompt_log_probs
        self.beams = progress.beams
        self.reason = progress.finish_reason
        self.error = progress.error
        self.speculation = progress.speculation or self.speculation
        self.steps += bool(progress.token_ids)


def run(stepper: ModelRunner, *requests: GenerationRequest) -> list[CollectedOutput]:
    """Check all, run all at once, and return what came of each; raises RequestError as the stepper does."""
    for request in requests:
        stepper.limits.check(request)
        stepper.check(request)
    answers = [CollectedOutput() for _ in requests]
    for number, request in enumerate(requests):
        stepper.add(number, request)
    deadline = time.monotonic() + TIMEOUT
    while any(answer.reason is None for answer in answers):
        assert time.monotonic() < deadline, "a request never ended"
        for progress in stepper.step():
            answers[progress.handle].add(progress)
    return answers
