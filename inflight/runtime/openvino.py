"""The embedded engine: OpenVINO GenAI's continuous-batching pipeline as a `Stepper`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from inflight.runtime.engine import EngineOptions, Progress
from inflight.runtime.messages import EngineLimits, FinishReason, GenerationRequest, Sampling

KV_BLOCK_TOKENS = 32
"""Tokens of one block of the paged KV cache on the CPU device."""

FINISH_REASONS = {
    openvino_genai.GenerationFinishReason.STOP: FinishReason.STOP,
    openvino_genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH,
}


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
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            options.model_dir, scheduler_config(options, blocks), "CPU", dict(manifest["properties"])
        )
        self._running: dict[int, tuple[openvino_genai.GenerationHandle, tuple[int, ...]]] = {}

    def check(self, request: GenerationRequest) -> None:
        pass

    def ready(self, request: GenerationRequest) -> bool:
        return True

    def add(self, handle: int, request: GenerationRequest) -> None:
        prompt = openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        generation = self._pipeline.add_request(handle, prompt, generation_config(request))
        self._running[handle] = (generation, request.end_ids)

    def remove(self, handle: int) -> None:
        generation, _ = self._running.pop(handle)
        generation.cancel()

    def step(self) -> Iterator[Progress]:
        self._pipeline.step()
        ended = []
        for handle, (generation, end_ids) in self._running.items():
            if not generation.can_read():
                continue
            (output,) = generation.read().values()
            token_ids = tuple(output.generated_ids)
            reason = FINISH_REASONS.get(output.finish_reason)
            if reason is None:
                yield Progress(handle, token_ids)
                continue
            ended.append(handle)
            if token_ids and token_ids[-1] in end_ids:
                token_ids = token_ids[:-1]
            yield Progress(handle, token_ids, reason)
        for handle in ended:
            del self._running[handle]


def scheduler_config(options: EngineOptions, kv_blocks: int) -> openvino_genai.SchedulerConfig:
    """The pipeline's scheduler settings; the benchmark runs the bare engine with the same."""
    config = openvino_genai.SchedulerConfig()
    config.num_kv_blocks = kv_blocks
    config.max_num_seqs = options.max_num_sequences
    config.max_num_batched_tokens = options.max_num_tokens
    config.dynamic_split_fuse = options.chunked_context
    config.enable_prefix_caching = options.kv_cache_reuse
    return config


def generation_config(request: GenerationRequest) -> openvino_genai.GenerationConfig:
    """Translate a request; the library's own defaults never show through."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_tokens
    config.min_new_tokens = min(request.sampling.min_tokens, request.max_tokens)
    if request.end_ids:
        config.eos_token_id = request.end_ids[0]
        config.stop_token_ids = set(request.end_ids)
    else:
        config.ignore_eos = True
    _set_sampling(config, request.sampling)
    return config


def _set_sampling(config: openvino_genai.GenerationConfig, sampling: Sampling) -> None:
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    if sampling.greedy:
        config.do_sample = False
        return
    config.do_sample = True
    config.temperature = 1.0 if sampling.temperature is None else sampling.temperature
    if sampling.top_k:
        config.top_k = sampling.top_k
    if sampling.top_p:
        config.top_p = sampling.top_p
    # The library's own default is one fixed seed, and so the same answer each time.
    config.rng_seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
