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
_OWN_DRAFTS = "it drafts by itself, if the server is started with --draft-engine or --prompt-lookup"
_NO_LOOKAHEAD = "it has no lookahead decoding; start the server with --prompt-lookup or --draft-engine instead"
_NO_RETENTION = "it evicts the least recently used prefixes first"
_LOGITS_STAY = "they are too large to return with each token; return_log_probs gives the tokens' log probabilities"
_NO_WEIGHTS = "adapters are directories of the server (--lora, --lora-dir), and selected by lora_task_id"


def _by_name(reason: str, *names: str, used: Callable[[Any], bool] = _not_zero) -> dict[str, _Unsupported]:
    return dict.fromkeys(names, _Unsupported(used, reason))


_PROMPT_TABLE = ("prompt_embedding_table", "prompt_table_extra_ids", "prompt_vocab_size")
_MROPE = ("mrope_rotary_cos_sin", "mrope_position_deltas")
_ENCODER = ("encoder_input_features", "encoder_output_lengths", "cross_attention_mask", "skip_cross_attn_blocks")
_RETENTION = (
    *("retention_token_range_starts", "retention_token_range_ends", "retention_token_range_priorities"),
    *("retention_token_range_durations_ms", "retention_decode_duration_ms"),
)
_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")

_ALL_ENGINES = {
    **_by_name("it accepts tokens but no embeddings as a prompt", *_PROMPT_TABLE, *_MROPE),
    **_by_name(_NO_ENCODER, *_ENCODER),
    **_by_name(_NO_ENCODER, "decoder_input_ids", used=_several),
    **_by_name(_OWN_DRAFTS, "draft_logits", "draft_acceptance_threshold"),
    **_by_name(_OWN_DRAFTS, "draft_input_ids", used=_not_empty),
    **_by_name("it does not support disaggregated serving", "context_phase_params"),
    **_by_name(_NO_RETENTION, *_RETENTION),
    **_by_name(_NO_RETENTION, "retention_decode_priority", used=_prioritized),
    **_by_name(_LOGITS_STAY, "return_context_logits", "return_generation_logits"),
    **_by_name("it samples with one top_p for the whole answer", "runtime_top_p_decay", used=_decaying),
    **_by_name(_NO_WEIGHTS, "lora_weights", "lora_config"),
}
"""Inputs that no engine of inflight supports."""

_EMBEDDED = {
    **_by_name("its beam search has no diversity rate", "beam_search_diversity_rate"),
    **_by_name(_NO_LOOKAHEAD, *_LOOKAHEAD, used=_positive),
}
_LLM_API = {
    **_by_name("it bans words alone; send bad_words_list", "allowed_token_ids"),
    **_by_name("its answers have the log probabilities of their own tokens", "return_prompt_log_probs"),
    **_by_name("its beam search runs without a diversity rate", "beam_search_diversity_rate"),
    **_by_name("it speculates as it was built to (speculative_config), not by request", *_LOOKAHEAD, used=_positive),
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
