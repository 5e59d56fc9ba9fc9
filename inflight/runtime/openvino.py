"""The embedded engine: OpenVINO GenAI's continuous-batching pipeline as a `Stepper`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from inflight.runtime.engine import EngineOptions, Progress
from inflight.runtime.messages import Beam, EngineLimits, FinishReason, GenerationRequest
from inflight.runtime.openvino_generation import check, generation_config

KV_BLOCK_TOKENS = 32
"""Tokens of one block of the paged KV cache on the CPU device."""

FINISH_REASONS = {
    openvino_genai.GenerationFinishReason.STOP: FinishReason.STOP,
    openvino_genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH,
}


@dataclass(frozen=True)
class _Running:
    request: GenerationRequest
    generation: openvino_genai.GenerationHandle


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
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            options.model_dir, scheduler_config(options, blocks), "CPU", dict(manifest["properties"])
        )
        self._running: dict[int, _Running] = {}

    def check(self, request: GenerationRequest) -> None:
        check(request, self._options)

    def ready(self, request: GenerationRequest) -> bool:
        return True

    def add(self, handle: int, request: GenerationRequest) -> None:
        prompt = openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        generation = self._pipeline.add_request(handle, prompt, generation_config(request))
        self._running[handle] = _Running(request, generation)

    def remove(self, handle: int) -> None:
        self._running.pop(handle).generation.cancel()

    def step(self) -> Iterator[Progress]:
        self._pipeline.step()
        ended = []
        for handle, running in self._running.items():
            if not running.generation.can_read():
                continue
            outputs = list(running.generation.read().values())
            read = _beams if running.request.sampling.beam_width > 1 else _tokens
            progress = read(handle, running.request, outputs)
            if progress.finish_reason is not None:
                ended.append(handle)
            yield progress
        for handle in ended:
            del self._running[handle]


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
    config.num_kv_blocks = kv_blocks
    config.max_num_seqs = options.max_num_sequences
    config.max_num_batched_tokens = options.max_num_tokens
    config.dynamic_split_fuse = options.chunked_context
    config.enable_prefix_caching = options.kv_cache_reuse
    return config
