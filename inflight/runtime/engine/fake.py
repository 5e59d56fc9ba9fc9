"""A deterministic engine: predictable tokens after configured delays, and failures on request."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

from inflight.runtime.engine.interface import EngineOptions, StepOutput
from inflight.runtime.messages import Beam, EngineLimits, FinishReason, GenerationRequest, LogProb

NO_TOKEN = "-1"
LOG_PROB = -0.5
"""Of every token of an answer and of the best beam; each further beam's tokens have LOG_PROB less."""


class FakeModelRunner:
    """Answers with the prompt's tokens, repeated, one per step; for tests and for measuring overhead.

    It supports `min_tokens`, end tokens, log probabilities and beams (`expected_beams`), and ignores other sampling
    parameters. `extra` accepts

    - `step_seconds` (0; several, as "0.001,0.005", take turns), `prefill_seconds_per_token` (0),
      `vocabulary_size` (512), `max_seq_len` (4096),
    - `traceable` (0): whether the answer to a request with a seed begins that many tokens later in the prompt, and log
      probabilities identify their token (`traced_log_prob`), so that no two answers look the same,
    - `prefill_tokens_per_step` (0: no limit): longer prompts take several steps before their first token,
    - `leak_bytes_per_request` and `leak_bytes_per_step` (0): memory that is never freed, to test leak detection,
    - tokens (unset) at the beginning of a prompt that make it fail: `add` refuses `refuse_token`, the step with
      `fail_token` raises, `die_token` kills the engine's process as SIGKILL does.
    """

    def __init__(self, options: EngineOptions) -> None:
        extra = options.extra
        self._step_seconds = cycle(map(float, extra.get("step_seconds", "0").split(",")))
        self._traceable = extra.get("traceable", "0") == "1"
        self._prefill_seconds_per_token = float(extra.get("prefill_seconds_per_token", "0"))
        self._prefill_tokens_per_step = int(extra.get("prefill_tokens_per_step", "0"))
        self._refuse_token = int(extra.get("refuse_token", NO_TOKEN))
        self._fail_token = int(extra.get("fail_token", NO_TOKEN))
        self._die_token = int(extra.get("die_token", NO_TOKEN))
        self._leak_per_request = int(extra.get("leak_bytes_per_request", "0"))
        self._leak_per_step = int(extra.get("leak_bytes_per_step", "0"))
        self._leaked: list[bytes] = []
        self.limits = EngineLimits(
            vocabulary_size=int(extra.get("vocabulary_size", "512")),
            max_seq_len=int(extra.get("max_seq_len", "4096")),
            kv_block_tokens=32,
            kv_blocks=-(-options.kv_cache_tokens // 32),
            max_num_sequences=options.max_num_sequences,
        )
        self.prefilled = 0
        self._running: dict[int, tuple[GenerationRequest, int]] = {}

    def check(self, request: GenerationRequest) -> None:
        """Accept every request."""

    def add(self, handle: int, request: GenerationRequest) -> None:
        """Add a request. Raises ValueError for `refuse_token`."""
        if request.prompt_ids[0] == self._refuse_token:
            raise ValueError("the fake engine refused\nbecause it was asked to")
        # Below 0 while the prompt is computed: the step that completes it generates the first token.
        steps = -(-len(request.prompt_ids) // (self._prefill_tokens_per_step or len(request.prompt_ids)))
        self._running[handle] = (_rotated_by_seed(request) if self._traceable else request, 1 - steps)
        self._leak(self._leak_per_request)

    def remove(self, handle: int) -> None:
        del self._running[handle]

    def step(self) -> Iterator[StepOutput]:
        new = [request for request, produced in self._running.values() if produced == 0]
        for request in new:
            if request.prompt_ids[0] == self._fail_token:
                raise RuntimeError("the fake engine failed because it was asked to")
            if request.prompt_ids[0] == self._die_token:
                os.kill(os.getpid(), signal.SIGKILL)
        tokens = sum(len(request.prompt_ids) for request in new)
        self.prefilled += tokens
        time.sleep(next(self._step_seconds) + self._prefill_seconds_per_token * tokens)
        self._leak(self._leak_per_step)
        for handle, (request, produced) in list(self._running.items()):
            produced += 1
            self._running[handle] = (request, produced)
            if produced < 1:
                continue
            advance = _next_beams_output if request.sampling.beam_width > 1 else _next_output
            progress = advance(handle, request, produced)
            if progress is None:
                continue
            if progress.finish_reason is not None:
                del self._running[handle]
            yield _traced(progress, request) if self._traceable else progress

    def _leak(self, size: int) -> None:
        if size:
            self._leaked.append(b"\x01" * size)  # zeros would take no memory


def expected_token(request: GenerationRequest, position: int) -> int:
    """Return the token that the fake engine generates at this position (from 0) of its answer."""
    return request.prompt_ids[position % len(request.prompt_ids)]


def traced_log_prob(token_id: int) -> float:
    """Return the log probability of a token of a traceable engine; exact in 32 bits."""
    return -token_id / 1024


def _traced(output: StepOutput, request: GenerationRequest) -> StepOutput:
    """Return the output with the log probabilities of a traceable engine, where it has any."""

    def traced(token_ids: tuple[int, ...], log_probs: tuple[float, ...]) -> tuple[float, ...]:
        pairs = zip(token_ids, log_probs, strict=False)
        return tuple(LogProb(traced_log_prob(token), getattr(each, "top", ())) for token, each in pairs)

    of_prompt = output.prompt_log_probs[:1] + traced(request.prompt_ids[1:], output.prompt_log_probs[1:])
    return output._replace(log_probs=traced(output.token_ids, output.log_probs), prompt_log_probs=of_prompt)


def _rotated_by_seed(request: GenerationRequest) -> GenerationRequest:
    """Return the request that is answered in place of one with a seed."""
    begin = (request.sampling.seed or 0) % len(request.prompt_ids)
    return replace(request, prompt_ids=request.prompt_ids[begin:] + request.prompt_ids[:begin])


def expected_beams(request: GenerationRequest) -> tuple[Beam, ...]:
    """Return all beams of a request: each one begins with the second token of the one before."""
    return tuple(_expected_beam(request, number) for number in range(request.sampling.beam_width))


def _expected_beam(request: GenerationRequest, number: int) -> Beam:
    token_ids: list[int] = []
    for position in range(request.max_tokens):
        token = expected_token(request, position + number)
        if _ends(request, token, position + 1):
            break
        token_ids.append(token)
    log_prob = LOG_PROB * (number + 1)
    log_probs = (log_prob,) * len(token_ids)
    return Beam(tuple(token_ids), log_probs if request.log_probs else (), sum(log_probs))


def _ends(request: GenerationRequest, token: int, produced: int) -> bool:
    return token in request.end_ids and produced > request.sampling.min_tokens


def _next_output(handle: int, request: GenerationRequest, produced: int) -> StepOutput:
    token = expected_token(request, produced - 1)
    if _ends(request, token, produced):
        return StepOutput(handle, (), FinishReason.STOP)
    reason = FinishReason.LENGTH if produced == request.max_tokens else None
    log_probs = (_log_prob(request, token),) if request.log_probs else ()
    prompt_log_probs: tuple[LogProb, ...] = ()
    if request.prompt_log_probs and produced == 1:
        prompt_log_probs = (LogProb(math.nan), *(_log_prob(request, each) for each in request.prompt_ids[1:]))
    return StepOutput(handle, (token,), reason, log_probs, prompt_log_probs=prompt_log_probs)


def _log_prob(request: GenerationRequest, token: int) -> LogProb:
    """Return a log probability beside which tokens with lower ids are ever less likely."""
    places = range(min(request.top_log_probs, token + 1))
    return LogProb(LOG_PROB, tuple((token - place, LOG_PROB * (1 + place)) for place in places))


def _next_beams_output(handle: int, request: GenerationRequest, produced: int) -> StepOutput | None:
    """Generate one more token of each beam; return all beams once the last one has ended.

    A search takes as many steps as its beams have tokens.
    """
    beams = expected_beams(request)
    if produced == min(request.max_tokens, max(len(beam.token_ids) for beam in beams) + 1):
        reason = FinishReason.STOP if len(beams[0].token_ids) < request.max_tokens else FinishReason.LENGTH
        return StepOutput(handle, (), reason, beams=beams)
    return StepOutput(handle, ()) if produced == 1 else None
