"""A model's parameters from its config.pbtxt, and what those of `tensorrt_llm` say about the engine."""

from __future__ import annotations

import json

from inflight.runtime.engine import EngineOptions

_TRUE = {"1", "true", "t", "y", "yes"}
_FALSE = {"0", "false", "f", "n", "no"}


def parameters(args: dict[str, str]) -> dict[str, str]:
    """The model's parameters by name; those left empty count as not given."""
    given = json.loads(args["model_config"]).get("parameters", {})
    return {name: value["string_value"] for name, value in given.items() if value.get("string_value")}


def flag(settings: dict[str, str], name: str, default: bool) -> bool:
    """A yes or no among the parameters; ValueError for anything else."""
    value = settings.get(name, "").lower()
    if not value:
        return default
    if value not in _TRUE | _FALSE:
        raise ValueError(f"parameter {name} is {value!r}; it must be true or false")
    return value in _TRUE


def engine_options(settings: dict[str, str]) -> EngineOptions:
    """What the model's parameters say about the engine."""
    return EngineOptions(
        engine=settings["inflight_engine"],
        model_dir=settings["gpt_model_path"],
        kv_cache_tokens=int(settings["max_tokens_in_paged_kv_cache"]),
        max_num_sequences=int(settings["max_num_sequences"]),
        max_num_tokens=int(settings["max_num_tokens"]),
        kv_cache_reuse=flag(settings, "enable_kv_cache_reuse", default=True),
        chunked_context=flag(settings, "enable_chunked_context", default=True),
        extra=json.loads(settings.get("inflight_engine_options", "{}")),
    )
