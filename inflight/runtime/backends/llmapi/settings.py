"""Settings of a `llmapi` engine directory: arguments of the library, and limits of requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.runtime.engine.interface import EngineOptions

MODEL_FILE = "model.yaml"
CHECKPOINT = "checkpoint"

DEFAULT_MAX_BATCH_SIZE = 2048
DEFAULT_MAX_NUM_TOKENS = 8192
"""Default of `LLM` in 1.2 and later (llm_args.py)."""
DEFAULT_TOKENS_PER_BLOCK = 32
"""Default of `KvCacheConfig` in 1.2 and later (llm_args.py)."""


@dataclass(frozen=True)
class LlmApiSettings:
    """`arguments` are those of `tensorrt_llm.LLM` except the model: model.yaml with the deployment's changes."""

    checkpoint: str
    arguments: dict[str, Any]
    vocabulary_size: int
    max_seq_len: int
    max_num_sequences: int
    kv_block_tokens: int
    kv_blocks: int
    end_ids: tuple[int, ...]

    @classmethod
    def from_options(cls, options: EngineOptions) -> LlmApiSettings:
        """Read an engine's settings.

        Raises ValueError for options that don't apply to this engine, OSError for a missing file.
        """
        _check(options)
        directory = Path(options.model_dir)
        manifest = json.loads((directory / "engine.json").read_text(encoding="utf-8"))
        arguments = _arguments(directory / MODEL_FILE, options)
        sequences = min(options.max_num_sequences, int(arguments.get("max_batch_size") or DEFAULT_MAX_BATCH_SIZE))
        longest = int(manifest["max_seq_len"])
        length = min(longest, int(arguments.get("max_seq_len") or longest))
        cache = arguments["kv_cache_config"]
        block = int(cache.get("tokens_per_block") or DEFAULT_TOKENS_PER_BLOCK)
        beams = int(arguments.get("max_beam_width") or 1)
        tokens = cache.get("max_tokens")
        blocks = -(-int(tokens) // block) if tokens else sequences * beams * -(-length // block)
        return cls(
            checkpoint=str(directory / CHECKPOINT),
            arguments=arguments,
            vocabulary_size=manifest["vocab_size"],
            max_seq_len=length,
            max_num_sequences=sequences * beams,
            kv_block_tokens=block,
            kv_blocks=blocks,
            end_ids=tuple(end_id for end_id in manifest["end_ids"] if end_id < manifest["vocab_size"]),
        )

    @property
    def beam_width(self) -> int:
        """Return the only width that a request may ask for: the library supports only the one it was started with."""
        return int(self.arguments.get("max_beam_width") or 1)

    @property
    def guides(self) -> bool:
        return self.arguments.get("guided_decoding_backend") is not None


def _check(options: EngineOptions) -> None:
    if options.draft_dir or options.prompt_lookup:
        raise ValueError(
            "speculation of the LLM API is configured when its engine is built (speculative_config); leave out the"
            " draft engine and the prompt lookup"
        )


def read_arguments(path: Path) -> dict[str, Any]:
    """Read model.yaml. Raises ValueError if it holds something else, OSError if it is missing."""
    import yaml  # part of NVIDIA's container; other engines don't need it

    arguments = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(arguments, dict):
        raise ValueError(f"{path} holds no arguments by name; build the engine again")
    return arguments


def _arguments(path: Path, options: EngineOptions) -> dict[str, Any]:
    """Read model.yaml; a deployment can disable reuse and chunked prefill, and lower cache and step sizes."""
    arguments = read_arguments(path)
    cache = dict(arguments.get("kv_cache_config") or {})
    if not options.kv_cache_reuse:
        cache["enable_block_reuse"] = False
    if options.kv_cache_tokens:
        cache["max_tokens"] = options.kv_cache_tokens
    if not options.chunked_context:
        arguments["enable_chunked_prefill"] = False
    step = min(options.max_num_tokens, int(arguments.get("max_num_tokens") or DEFAULT_MAX_NUM_TOKENS))
    return {**arguments, "kv_cache_config": cache, "max_num_tokens": step}
