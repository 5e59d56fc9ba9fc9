"""The embedded engine: OpenVINO GenAI's continuous-batching pipeline as a `ModelRunner`."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import openvino
import openvino_genai

from inflight.runtime.backends.openvino.adapters import OpenVinoAdapters
from inflight.runtime.backends.openvino.generation_config import (
    check_request,
    first_token_config,
    generation_config,
    may_end_with_first_token,
    with_fewer_ends,
)
from inflight.runtime.backends.openvino.guided_decoding.guide_cache import GuideCache, digest
from inflight.runtime.backends.openvino.guided_decoding.watchdog import CompiledGuides, GuideStallDetector
from inflight.runtime.backends.openvino.pipeline import KV_BLOCK_TOKENS, kv_blocks, make_pipeline, scheduler_config
from inflight.runtime.backends.openvino.prefix_conflicts import PrefixConflicts
from inflight.runtime.backends.openvino.speculation import DraftCounter
from inflight.runtime.engine.interface import EngineOptions, StepOutput
from inflight.runtime.engine.manifest import EngineManifest
from inflight.runtime.messages import Beam, EngineLimits, FinishReason, GenerationRequest, tenant_of

IDLE_WAIT_S = 0.005
"""How long an idle engine waits for a guide's probe before it checks for work again."""

FINISH_REASONS = {
    openvino_genai.GenerationFinishReason.STOP: FinishReason.STOP,
    openvino_genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH,
}


@dataclass
class _RunningRequest:
    """A request in the pipeline, or about to enter it while `generation` is None."""

    request: GenerationRequest
    drafts: DraftCounter | None
    generation: openvino_genai.GenerationHandle | None = None
    tries_first_token: bool = False
    tokens: int = 0
    prompt_computed: bool = False
    """Whether its prompt is computed: the pipeline has returned a token."""


class OpenVinoModelRunner:
    """Runs an engine directory of `inflight build --target openvino`; needs its engine.json.

    Raises ValueError for options that the library doesn't support.
    """

    def __init__(self, options: EngineOptions) -> None:
        manifest = EngineManifest.from_directory(options.model_dir)
        self.limits = EngineLimits(
            vocabulary_size=manifest.vocabulary_size,
            max_seq_len=manifest.max_seq_len,
            kv_block_tokens=KV_BLOCK_TOKENS,
            kv_blocks=kv_blocks(options),
            max_num_sequences=options.max_num_sequences,
        )
        self._options = options
        self._caches_prefixes = scheduler_config(options).enable_prefix_caching
        self._prefix_conflicts = PrefixConflicts(self.limits.kv_blocks)
        self._end_ids = manifest.end_ids
        self._adapters = OpenVinoAdapters(options.adapters, options.model_dir)
        self._pipeline = make_pipeline(options, manifest, **self._adapters.pipeline_properties)
        self._adapters.check_all(self._pipeline)
        self._guides = GuideCache(options.model_dir, manifest)
        self._compiled_guides = CompiledGuides(self._pipeline.get_tokenizer(), manifest.vocabulary_size)
        self._stall_detector = GuideStallDetector(self._pipeline, options)
        self._running: dict[int, _RunningRequest] = {}
        self._pending: deque[int] = deque()
        self._first_token_numbers = count(1 << 61)  # no request's handle is this large

    def check(self, request: GenerationRequest) -> None:
        check_request(request, self._options)
        self._adapters.check(request)
        if request.guide is not None:
            self._guides.check(request.guide)

    def ready(self, request: GenerationRequest) -> bool:
        return request.guide is None or self._guides.ready(request.guide)

    def prepare(self, waiting: Sequence[GenerationRequest]) -> None:
        guides = [(tenant_of(request.metadata), request.guide) for request in waiting if request.guide is not None]
        # While no request runs, wait for the probe.
        self._guides.advance(guides, timeout=0.0 if self._running else IDLE_WAIT_S)

    def joinable(self, request: GenerationRequest, ahead: Sequence[GenerationRequest]) -> bool:
        if not self._caches_prefixes:
            return True
        computing = (running.request for running in self._running.values() if not running.prompt_computed)
        return not self._prefix_conflicts.conflicts(
            request.prompt_ids, (one.prompt_ids for one in (*computing, *ahead))
        )

    def add(self, handle: int, request: GenerationRequest) -> None:
        if request.guide is not None:
            self._guides.ready(request.guide)  # the guide may have stalled the engine since it passed
            self._compiled_guides.add(digest(request.guide), self._guides.compiled_bytes(request.guide))
            # Without an end token, a complete guided answer would continue unguided.
            request = replace(request, end_ids=request.end_ids or self._end_ids)
        self._adapters.activate(self._pipeline, request.adapter)
        self._prefix_conflicts.add(request.prompt_ids)
        speculates = self._options.draft_dir or self._options.prompt_lookup
        running = _RunningRequest(request, DraftCounter(request, self._options) if speculates else None)
        if self._options.draft_dir:
            self._pending.append(handle)
        else:
            self._start(handle, running)
        self._running[handle] = running

    def _start(self, handle: int, running: _RunningRequest) -> None:
        if may_end_with_first_token(running.request):
            running.tries_first_token = True
            number = next(self._first_token_numbers)
            running.generation = self._pipeline.add_request(number, _prompt(running.request), first_token_config())
            return
        config = generation_config(running.request, self._options)
        running.generation = self._pipeline.add_request(handle, _prompt(running.request), config)

    def _start_pending(self) -> None:
        """Start pending requests, few at a time with a draft model: a step then computes whole prompts."""
        tokens = 0
        while self._pending:
            running = self._running[self._pending[0]]
            tokens += len(running.request.prompt_ids)
            if tokens > self._options.max_num_tokens and tokens > len(running.request.prompt_ids):
                return
            self._start(self._pending.popleft(), running)

    def removable(self, handle: int) -> bool:
        """Return False while the prompt is computed and prefix caching is on.

        The library would keep all blocks of the prompt as if they were computed, and answer the next request with the
        same prompt wrongly. A beam search has no output before its end, so it is not removable before that.
        """
        running = self._running[handle]
        return not self._caches_prefixes or running.generation is None or running.prompt_computed

    def remove(self, handle: int) -> None:
        running = self._running.pop(handle)
        if running.generation is None:
            self._pending.remove(handle)
        else:
            running.generation.cancel()

    def close(self) -> None:
        """End the guide probe's process; it also ends when this process does."""
        self._guides.close()

    def step(self) -> Iterator[StepOutput]:
        self._start_pending()
        started = time.process_time()
        self._pipeline.step()
        stalling = self._stall_detector.stalled_request(time.process_time() - started, self._guided())
        ended = []
        for handle, running in self._running.items():
            progress = self._read_output(handle, running, stalling=handle == stalling)
            if progress is None:
                continue
            running.tokens += len(progress.token_ids)
            if progress.finish_reason is not None:
                ended.append(handle)
            yield progress
        for handle in ended:
            del self._running[handle]

    def _read_output(self, handle: int, running: _RunningRequest, stalling: bool) -> StepOutput | None:
        if running.generation is None or not running.generation.can_read():
            return None
        outputs = list(running.generation.read().values())
        running.prompt_computed = not running.tries_first_token
        if running.tries_first_token:
            self._start_beam_search(handle, running, outputs[0].generated_ids[0])
            return StepOutput(handle, ())
        if running.request.sampling.beam_width > 1:
            return _beams_output(handle, running.request, outputs)
        progress = _tokens_output(handle, running, outputs[0])
        if stalling and progress.finish_reason is None and running.request.guide is not None:
            running.generation.cancel()
            error = self._guides.reject(running.request.guide)
            return progress._replace(finish_reason=FinishReason.ERROR, error=error)
        return progress

    def _start_beam_search(self, handle: int, running: _RunningRequest, first_token: int) -> None:
        """Start the beam search after its first token was tested."""
        request = with_fewer_ends(running.request, first_token)
        config = generation_config(request, self._options)
        running.tries_first_token = False
        running.generation = self._pipeline.add_request(handle, _prompt(request), config)

    def _guided(self) -> dict[int, int]:
        return {handle: running.tokens for handle, running in self._running.items() if running.request.guide}


def _prompt(request: GenerationRequest) -> openvino.Tensor:
    return openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))


def _tokens_output(handle: int, running: _RunningRequest, output: openvino_genai.GenerationOutput) -> StepOutput:
    request, token_ids = running.request, tuple(output.generated_ids)
    reason = FINISH_REASONS.get(output.finish_reason)
    drafts = running.drafts.update(token_ids, reason is not None) if running.drafts and token_ids else None
    if reason is not None and token_ids and token_ids[-1] in request.end_ids:
        token_ids = token_ids[:-1]
    log_probs = tuple(output.generated_log_probs[: len(token_ids)]) if request.log_probs else ()
    return StepOutput(handle, token_ids, reason, log_probs, speculation=drafts)


def _beams_output(
    handle: int, request: GenerationRequest, outputs: list[openvino_genai.GenerationOutput]
) -> StepOutput:
    """Return all beams at once, the best first, with the finish reason of the best."""
    outputs.sort(key=lambda output: -output.score)
    beams = tuple(_beam(request, output) for output in outputs)
    whole = len(beams[0].token_ids) < len(outputs[0].generated_ids)
    return StepOutput(handle, (), FinishReason.STOP if whole else FinishReason.LENGTH, beams=beams)


def _beam(request: GenerationRequest, output: openvino_genai.GenerationOutput) -> Beam:
    """Return the beam without its end token."""
    token_ids, log_probs = output.generated_ids, output.generated_log_probs
    end = next((place for place, token in enumerate(token_ids) if token in request.end_ids), len(token_ids))
    log_probs = tuple(log_probs[:end])
    return Beam(tuple(token_ids[:end]), log_probs if request.log_probs else (), math.fsum(log_probs))
