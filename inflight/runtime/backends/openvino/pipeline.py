"""Builds OpenVINO GenAI's continuous-batching pipeline with the options of a deployment."""

from __future__ import annotations

from typing import Any

import openvino_genai

from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.engine.manifest import EngineManifest

KV_BLOCK_TOKENS = 32
"""Tokens per block of the paged KV cache on the CPU device."""

NGRAM_TOKENS = 3
"""Prompt lookup matches this many of the last tokens first, then fewer."""


def make_pipeline(
    options: EngineOptions, manifest: EngineManifest, **more: Any
) -> openvino_genai.ContinuousBatchingPipeline:
    """Load the engine, and the draft engine if there is one. Raises ValueError for options that exclude each other."""
    if options.draft_dir and options.prompt_lookup:
        raise ValueError("a draft model and prompt lookup exclude each other; choose one")
    if (options.draft_dir or options.prompt_lookup) and options.num_draft_tokens < 1:
        raise ValueError(f"num_draft_tokens is {options.num_draft_tokens}; it must be 1 or more")
    if (options.draft_dir or options.prompt_lookup) and options.adapters:
        raise ValueError("an engine that speculates takes no adapters; leave one out")
    if options.draft_dir:
        more["draft_model"] = _draft_model(options, manifest)
    if options.prompt_lookup:
        more["prompt_lookup"] = True
    return openvino_genai.ContinuousBatchingPipeline(
        options.model_dir,
        openvino_genai.Tokenizer(options.model_dir),
        scheduler_config(options),
        "CPU",
        **more,
        **_threads(options),
        **manifest.properties,
    )


def _threads(options: EngineOptions) -> dict[str, Any]:
    return {"INFERENCE_NUM_THREADS": options.threads} if options.threads else {}


def _draft_model(options: EngineOptions, manifest: EngineManifest) -> Any:
    draft = EngineManifest.from_directory(options.draft_dir)
    if draft.vocabulary_size != manifest.vocabulary_size:
        raise ValueError(
            f"the draft model {options.draft_dir} has {draft.vocabulary_size} tokens in its vocabulary and"
            f" {options.model_dir} has {manifest.vocabulary_size}; choose one with the same tokenizer"
        )
    for directory, one in ((options.draft_dir, draft), (options.model_dir, manifest)):
        if not one.has_tokenizer:
            raise ValueError(f"{directory} lacks the tokenizer files that a draft model needs; build it again")
    return openvino_genai.draft_model(
        options.draft_dir, "CPU", scheduler_config=scheduler_config(options), **_threads(options), **draft.properties
    )


def scheduler_config(options: EngineOptions) -> openvino_genai.SchedulerConfig:
    """Return the pipeline's scheduler settings; the benchmark runs the bare engine with the same ones."""
    config = openvino_genai.SchedulerConfig()
    config.num_kv_blocks = kv_blocks(options) + _spare_blocks(options)
    config.max_num_seqs = options.max_num_sequences
    config.max_num_batched_tokens = options.max_num_tokens
    config.dynamic_split_fuse = options.chunked_context
    config.enable_prefix_caching = options.kv_cache_reuse and not _misleads_prefix_cache(options)
    if options.draft_dir:
        # If a step can't hold all running requests, the library desynchronizes the two models and answers wrongly.
        config.max_num_batched_tokens = config.num_kv_blocks * KV_BLOCK_TOKENS
        config.dynamic_split_fuse = True
    return config


def _misleads_prefix_cache(options: EngineOptions) -> bool:
    """Return whether prefix caching could reuse keys and values that don't belong to a new request's tokens.

    The cache is indexed by tokens only: it ignores the adapter, and includes looked-up tokens that were never computed
    because their request was cancelled.
    """
    return bool(options.adapters) or options.prompt_lookup


def kv_blocks(options: EngineOptions) -> int:
    return -(-options.kv_cache_tokens // KV_BLOCK_TOKENS)


def _spare_blocks(options: EngineOptions) -> int:
    """Return the blocks needed beyond those of requests: one for the engine's probe of a step, and some for drafts."""
    speculates = options.draft_dir or options.prompt_lookup
    drafted = -(-options.num_draft_tokens // KV_BLOCK_TOKENS) * options.max_num_sequences if speculates else 0
    return 1 + drafted
