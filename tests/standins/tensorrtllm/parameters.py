"""A stand-in for the reading of parameters by TensorRT-LLM's backend: each by its type, and none unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

BOOLEANS = {
    "True": True,
    "true": True,
    "TRUE": True,
    "1": True,
    "False": False,
    "false": False,
    "FALSE": False,
    "0": False,
}


def boolean(text: str) -> bool:
    return BOOLEANS[text]


def int32(text: str) -> int:
    value = int(text)
    if not -(2**31) <= value < 2**31:
        raise ValueError("out of range")
    return value


def numbers(text: str) -> list[int]:
    return [int32(part) for part in text.split(",")]


def groups(text: str) -> list[list[int]]:
    return [numbers(part) for part in text.split(";")]


def trees(text: str) -> list[list[int]]:
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("no braces")
    return [numbers(part) for part in text[1:-1].split("}, {")]


def existing(text: str) -> str:
    if not Path(text).exists():
        raise ValueError("does not exist")
    return text


def text_of(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


GUIDES = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
REQUIRED = ("gpt_model_type", "gpt_model_path", *GUIDES)
"""Read without a default: the backend does not load a model without them."""

KNOWN: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(GUIDES, str),
    **dict.fromkeys(
        ("gpt_model_type", "batch_scheduler_policy", "decoding_mode", "FORCE_CPU_ONLY_INPUT_TENSORS"), text_of
    ),
    **dict.fromkeys(("gpt_model_path", "encoder_model_path", "lora_prefetch_dir"), existing),
    # In the container, where the backend itself lies.
    "executor_worker_path": text_of,
    **dict.fromkeys(
        (
            *("max_beam_width", "max_tokens_in_paged_kv_cache", "sink_token_length", "iter_stats_max_iterations"),
            *("request_stats_max_iterations", "cancellation_check_period_ms", "stats_check_period_ms", "num_nodes"),
            *("recv_poll_period_ms", "cuda_graph_cache_size", "lora_cache_max_adapter_size"),
            *("lora_cache_optimal_adapter_size", "lookahead_window_size", "lookahead_ngram_size"),
            "lookahead_verification_set_size",
        ),
        int32,
    ),
    **dict.fromkeys(("kv_cache_host_memory_bytes", "lora_cache_host_memory_bytes"), int),
    **dict.fromkeys(
        (
            *("kv_cache_free_gpu_mem_fraction", "cross_kv_cache_fraction", "lora_cache_gpu_memory_fraction"),
            "gpu_weights_percent",
        ),
        float,
    ),
    **dict.fromkeys(
        (
            *("kv_cache_onboard_blocks", "enable_kv_cache_reuse", "enable_chunked_context", "normalize_log_probs"),
            *("exclude_input_in_output", "multi_block_mode", "enable_context_fmha_fp32_acc", "cuda_graph_mode"),
            "speculative_decoding_fast_logits",
        ),
        boolean,
    ),
    "max_attention_window_size": numbers,
    **dict.fromkeys(("gpu_device_ids", "participant_ids"), groups),
    **dict.fromkeys(("medusa_choices", "eagle_choices"), trees),
}


UNREAD = ("inflight_version", "inflight_engine_version", "inflight_build")


def read_parameters(texts: dict[str, str]) -> dict[str, Any]:
    """Raise RuntimeError for one that is missing, unknown or can't be parsed.

    The backend asks for its parameters by name and never lists them, so those of a deployment's maker stay unread; all
    others it does not know are errors here, as they are mistakes.
    """
    for name in REQUIRED:
        if name not in texts:
            raise RuntimeError(f"Cannot find parameter with name: {name}")
    found: dict[str, Any] = {}
    for name, text in texts.items():
        if name in UNREAD:
            continue
        if name not in KNOWN:
            raise RuntimeError(f"Unknown parameter: {name}")
        try:
            found[name] = KNOWN[name](text)
        except (ValueError, KeyError) as error:
            raise RuntimeError(f"Cannot read parameter {name} from {text!r}: {error}") from error
    check(found)
    return found


def check(found: dict[str, Any]) -> None:
    """Raise RuntimeError in upstream's words for what executorImpl.cpp and the backend do not load with."""
    if found["gpt_model_type"] in ("V1", "v1"):
        raise RuntimeError(
            "Static batching type is deprecated. Please use in-flight batching with"
            " CapacitySchedulerPolicy::kSTATIC_BATCH instead."
        )
    if found["gpt_model_type"] not in ("inflight_batching", "inflight_fused_batching"):
        raise RuntimeError("Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching.")
    if any(rank == 0 for group in found.get("participant_ids", ()) for rank in group):
        raise RuntimeError("Rank 0 is reserved for the orchestrator")
    path = found["xgrammar_tokenizer_info_path"]
    if found["guided_decoding_backend"] == "xgrammar" and not Path(path).is_file():
        raise RuntimeError(f"Xgrammar's tokenizer info path at {path} does not exist.")
