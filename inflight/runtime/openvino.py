"""The embedded engine: OpenVINO GenAI's continuous-batching pipeline as a `Stepper`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from inflight.runtime.engine import EngineOptions, Progress
from inflight.runtime.messages import Beam, EngineLimits, FinishReason, GenerationRequest
from inflight.runtime.openvino_generation import check, generation_config
from inflight.runtime.openvino_guide_watch import CompiledGuides, StallWatch
from inflight.runtime.openvino_guides import Guides, digest

KV_BLOCK_TOKENS = 32
"""Tokens of one block of the paged KV cache on the CPU device."""

IDLE_PATIENCE_S = 0.005
"""How long an engine with nothing else to do waits for a guide's trial before it looks round again."""

FINISH_REASONS = {
    openvino_genai.GenerationFinishReason.STOP: FinishReason.STOP,
    openvino_genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH,
}


@dataclass
class _Running:
    request: GenerationRequest
    generation: openvino_genai.GenerationHandle
    tokens: int = 0


class OpenVinoStepper:
    """Runs an engine directory that `inflight build --target openvino` made; needs its engine.json."""

    def __init__(self, options: EngineOptions) -> None:
        manifest = json.loads((Path(options.model_dir) / "engine.json").read_text(encoding="utf-8"))
        blocks = -(-options.kv_cache_tokens // KV_BLOCK_TOKENS)
        self.limits = EngineLimits(
            vocabulary_size=manifest["vocab_size"],
            max_sequence_length=manifest["max_sequence_length"],
            kv_block_tokens=KV_BLOCK_TOKENS,
            kv_blocks=blocks,
            max_num_sequences=options.max_num_sequences,
        )
        self._options = options
        self._end_ids = tuple(manifest["end_ids"])
        tokenizer = openvino_genai.Tokenizer(options.model_dir)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            options.model_dir, tokenizer, scheduler_config(options, blocks), "CPU", **manifest["properties"]
        )
        self._guides = Guides(options.model_dir, self.limits.vocabulary_size, self._end_ids)
        self._compiled_guides = CompiledGuides(tokenizer, self.limits.vocabulary_size)
        self._stall_watch = StallWatch(self._pipeline)
        self._running: dict[int, _Running] = {}

    def check(self, request: GenerationRequest) -> None:
        check(request, self._options)
        if request.guide is not None:
            self._guides.check(request.guide)

    def ready(self, request: GenerationRequest) -> bool:
        if request.guide is None:
            return True
        # While nothing runs, who asks has nothing else to do.
        return self._guides.ready(request.guide, patience=0.0 if self._running else IDLE_PATIENCE_S)

    def add(self, handle: int, request: GenerationRequest) -> None:
        if request.guide is not None:
            self._compiled_guides.add(digest(request.guide), self._guides.compiled_bytes(request.guide))
            # Without an end token a guided answer would go on, unguided, once it is whole.
            request = replace(request, end_ids=request.end_ids or self._end_ids)
        prompt = openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        generation = self._pipeline.add_request(handle, prompt, generation_config(request))
        self._running[handle] = _Running(request, generation)

    def remove(self, handle: int) -> None:
        self._running.pop(handle).generation.cancel()

    def close(self) -> None:
        """End the process in which guides are tried; it ends by itself with this one."""
        self._guides.close()

    def step(self) -> Iterator[Progress]:
        started = time.process_time()
        self._pipeline.step()
        stalling = self._stall_watch.culprit(time.process_time() - started, self._guided())
        ended = []
        for handle, running in self._running.items():
            progress = self._progress(handle, running, stalling=handle == stalling)
            if progress is None:
                continue
            running.tokens += len(progress.token_ids)
            if progress.finish_reason is not None:
                ended.append(handle)
            yield progress
        for handle in ended:
            del self._running[handle]

    def _progress(self, handle: int, running: _Running, stalling: bool) -> Progress | None:
        if not running.generation.can_read():
            return None
        outputs = list(running.generation.read().values())
        read = _beams if running.request.sampling.beam_width > 1 else _tokens
        progress = read(handle, running.request, outputs)
        if stalling and progress.finish_reason is None and running.request.guide is not None:
            running.generation.cancel()
            error = self._guides.condemn(running.request.guide)
            return Progress(handle, progress.token_ids, FinishReason.ERROR, progress.log_probs, error=error)
        return progress

    def _guided(self) -> dict[int, int]:
        return {handle: running.tokens for handle, running in self._running.items() if running.request.guide}


def _tokens(handle: int, request: GenerationRequest, outputs: list[openvino_genai.GenerationOutput]) -> Progress:
    (output,) = outputs
    token_ids = tuple(output.generated_ids)
    reason = FINISH_REASONS.get(output.finish_reason)
    if reason is not None and token_ids and token_ids[-1] in request.end_ids:
        token_ids = token_ids[:-1]
    log_probs = tuple(output.generated_log_probs[: len(token_ids)]) if request.log_probs else ()
    return Progress(handle, token_ids, reason, log_probs)


def _beams(handle: int, request: GenerationRequest, outputs: list[openvino_genai.GenerationOutput]) -> Progress:
    """All beams at once, the best first; the reason is that of the best."""
    outputs.sort(key=lambda output: -output.score)
    reason = FINISH_REASONS[outputs[0].finish_reason]
    return Progress(handle, (), reason, beams=tuple(_beam(request, output) for output in outputs))


def _beam(request: GenerationRequest, output: openvino_genai.GenerationOutput) -> Beam:
    token_ids, log_probs = tuple(output.generated_ids), tuple(output.generated_log_probs)
    if token_ids and token_ids[-1] in request.end_ids:
        token_ids, log_probs = token_ids[:-1], log_probs[:-1]
    return Beam(token_ids, log_probs if request.log_probs else (), math.fsum(log_probs))


def scheduler_config(options: EngineOptions, kv_blocks: int) -> openvino_genai.SchedulerConfig:
    """The pipeline's scheduler settings; the benchmark runs the bare engine with the same."""
    config = openvino_genai.SchedulerConfig()
    config.num_kv_blocks = kv_blocks + 1  # one for the engine's own probe of a step
    config.max_num_seqs = options.max_num_sequences
    config.max_num_batched_tokens = options.max_num_tokens
    config.dynamic_split_fuse = options.chunked_context
    config.enable_prefix_caching = options.kv_cache_reuse
    return config
