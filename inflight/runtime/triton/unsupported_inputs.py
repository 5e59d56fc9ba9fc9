"""Upstream's inputs that an engine doesn't support: refused by name, and only if they ask for something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from inflight.common.request_error import RequestError


class _Unsupported(NamedTuple):
    used: Callable[[Any], bool]
    reason: str


def _not_zero(values: Any) -> bool:
    return bool(np.any(values))


def _positive(values: Any) -> bool:
    return bool(np.any(values > 0))


def _decaying(values: Any) -> bool:
    """A decay of 1 is upstream's default."""
    return bool(np.any((values != 1) & (values != 0)))


def _prioritized(values: Any) -> bool:
    """A priority of 35 is upstream's default for blocks."""
    return bool(np.any((values != 35) & (values != 0)))


def _not_empty(values: Any) -> bool:
    return bool(values.size)


def _several(values: Any) -> bool:
    """Return whether there is more than one per prompt."""
    return bool(values.shape[-1] > 1)


_NO_ENCODER = "it has no encoder and serves decoder-only models"
_NO_PROMPT_TABLE = "it accepts tokens but no embeddings as a prompt"
_OWN_DRAFTS = "it drafts by itself, if the server is started with --draft-engine or --prompt-lookup"
_NO_LOOKAHEAD = "it has no lookahead decoding; start the server with --prompt-lookup or --draft-engine instead"
_NO_RETENTION = "it evicts the least recently used prefixes first"
_LOGITS_STAY = "they are too large to return with each token; return_log_probs gives the tokens' log probabilities"
_BUILT_SPECULATION = "it speculates as it was built to (speculative_config), not by request"
_NO_WEIGHTS = "adapters are directories of the server (--lora, --lora-dir), and selected by lora_task_id"

_ALL_ENGINES = {
    "prompt_embedding_table": _Unsupported(_not_zero, _NO_PROMPT_TABLE),
    "prompt_table_extra_ids": _Unsupported(_not_zero, _NO_PROMPT_TABLE),
    "prompt_vocab_size": _Unsupported(_not_zero, _NO_PROMPT_TABLE),
    "mrope_rotary_cos_sin": _Unsupported(_not_zero, _NO_PROMPT_TABLE),
    "mrope_position_deltas": _Unsupported(_not_zero, _NO_PROMPT_TABLE),
    "encoder_input_features": _Unsupported(_not_zero, _NO_ENCODER),
    "encoder_output_lengths": _Unsupported(_not_zero, _NO_ENCODER),
    "decoder_input_ids": _Unsupported(_several, _NO_ENCODER),
    "cross_attention_mask": _Unsupported(_not_zero, _NO_ENCODER),
    "skip_cross_attn_blocks": _Unsupported(_not_zero, _NO_ENCODER),
    "draft_input_ids": _Unsupported(_not_empty, _OWN_DRAFTS),
    "draft_logits": _Unsupported(_not_zero, _OWN_DRAFTS),
    "draft_acceptance_threshold": _Unsupported(_not_zero, _OWN_DRAFTS),
    "context_phase_params": _Unsupported(_not_zero, "it does not support disaggregated serving"),
    "retention_token_range_starts": _Unsupported(_not_zero, _NO_RETENTION),
    "retention_token_range_ends": _Unsupported(_not_zero, _NO_RETENTION),
    "retention_token_range_priorities": _Unsupported(_not_zero, _NO_RETENTION),
    "retention_token_range_durations_ms": _Unsupported(_not_zero, _NO_RETENTION),
    "retention_decode_priority": _Unsupported(_prioritized, _NO_RETENTION),
    "retention_decode_duration_ms": _Unsupported(_not_zero, _NO_RETENTION),
}
"""Inputs that no engine of inflight supports."""

_EMBEDDED = {
    "return_context_logits": _Unsupported(_not_zero, _LOGITS_STAY),
    "return_generation_logits": _Unsupported(_not_zero, _LOGITS_STAY),
    "beam_search_diversity_rate": _Unsupported(_not_zero, "its beam search has no diversity rate"),
    "runtime_top_p_decay": _Unsupported(_decaying, "it samples with one top_p for the whole answer"),
    "lora_weights": _Unsupported(_not_zero, _NO_WEIGHTS),
    "lora_config": _Unsupported(_not_zero, _NO_WEIGHTS),
    "lookahead_window_size": _Unsupported(_positive, _NO_LOOKAHEAD),
    "lookahead_ngram_size": _Unsupported(_positive, _NO_LOOKAHEAD),
    "lookahead_verification_set_size": _Unsupported(_positive, _NO_LOOKAHEAD),
}
_LLM_API = {
    "allowed_token_ids": _Unsupported(_not_zero, "it bans words alone; send bad_words_list"),
    "return_prompt_log_probs": _Unsupported(_not_zero, "its answers have the log probabilities of their own tokens"),
    "return_context_logits": _Unsupported(_not_zero, _LOGITS_STAY),
    "return_generation_logits": _Unsupported(_not_zero, _LOGITS_STAY),
    "beam_search_diversity_rate": _Unsupported(_not_zero, "its beam search runs without a diversity rate"),
    "runtime_top_p_decay": _Unsupported(_decaying, "it samples with one top_p for the whole answer"),
    "lora_weights": _Unsupported(_not_zero, _NO_WEIGHTS),
    "lora_config": _Unsupported(_not_zero, _NO_WEIGHTS),
    "lookahead_window_size": _Unsupported(_positive, _BUILT_SPECULATION),
    "lookahead_ngram_size": _Unsupported(_positive, _BUILT_SPECULATION),
    "lookahead_verification_set_size": _Unsupported(_positive, _BUILT_SPECULATION),
}

UNSUPPORTED_INPUTS = {
    "openvino": _ALL_ENGINES | _EMBEDDED,
    "fake": _ALL_ENGINES | _EMBEDDED,
    "llmapi": _ALL_ENGINES | _LLM_API,
}
"""By engine; the fake one imitates the embedded one.

Neutral values (empty, zeros, false, upstream's default) are accepted.
"""
_ENGINE_LABELS = {"openvino": "the embedded engine", "fake": "the embedded engine", "llmapi": "the LLM API's engine"}


def check_supported(engine: str, name: str, values: Any, label: str) -> None:
    """Raise RequestError (`unsupported_input`), naming the input by `label`, if `values` need what it lacks."""
    unsupported = UNSUPPORTED_INPUTS[engine].get(name)
    if unsupported is not None and unsupported.used(values):
        raise RequestError(
            f"{label} is not supported by {_ENGINE_LABELS[engine]}: {unsupported.reason}; leave it out",
            "unsupported_input",
        )
