"""A stand-in for NVIDIA's tensorrt_llm.llmapi.llm_utils."""

from __future__ import annotations

from typing import Any

from .llm_args import KvCacheConfig


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any], llm_args_dict: dict[str, Any], extra_llm_api_options: str | None = None
) -> dict[str, Any]:
    """Nested settings become the types that they are of."""
    merged = llm_args | llm_args_dict
    if isinstance(merged.get("kv_cache_config"), dict):
        merged["kv_cache_config"] = KvCacheConfig(**merged["kv_cache_config"])
    return merged
