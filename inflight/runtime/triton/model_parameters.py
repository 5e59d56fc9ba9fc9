"""Reads a model's parameters from its config.pbtxt, and the engine's options from those of `tensorrt_llm`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from inflight import __version__, compatible
from inflight.runtime.engine.interface import EngineOptions


def check_version(written: str, model: str) -> None:
    """Refuse a model of a repository of another version; `written` is empty if the repository has no version.

    Raises RuntimeError at load, before anything else of the model is read.
    """
    if written and not compatible(written, __version__):
        raise RuntimeError(
            f"the model {model} was written by inflight {written} and the package inflight that runs it here is"
            f" {__version__}; install inflight {written} here, or assemble the repository again with {__version__}, or"
            " with --vendor, which brings its own"
        )


_PATHS = ("gpt_model_path", "tokenizer_dir", "draft_model_path", "lora_directory", "engine_dir")
"""Parameters that name a file or directory; `lora_adapters` is a JSON list of paths."""
_TRUE = {"1", "true", "t", "y", "yes"}
_SIZES_OWN_KV_CACHE = {"llmapi"}
_FALSE = {"0", "false", "f", "n", "no"}


def parameters(args: dict[str, str]) -> dict[str, str]:
    """Return the model's parameters by name, without empty ones; paths become absolute.

    Relative paths start at the model's folder, wherever Triton has put that: it copies a repository from S3 to a
    temporary directory. Raises RuntimeError for a model of another version of inflight.
    """
    written = _config(args).get("parameters", {})
    settings = {name: value["string_value"] for name, value in written.items() if value.get("string_value")}
    check_version(settings.get("inflight_version", ""), args.get("model_name", ""))
    folder = Path(args.get("model_repository", "")).absolute()
    for name in filter(settings.get, _PATHS):
        settings[name] = str(folder / settings[name])
    if "lora_adapters" in settings:
        settings["lora_adapters"] = json.dumps([str(folder / path) for path in json.loads(settings["lora_adapters"])])
    return settings


def flag(settings: dict[str, str], name: str, default: bool) -> bool:
    """Return a boolean parameter. Raises ValueError for any value but true and false."""
    value = settings.get(name, "").lower()
    if not value:
        return default
    if value not in _TRUE | _FALSE:
        raise ValueError(f"parameter {name} is {value!r}; it must be true or false")
    return value in _TRUE


def milliseconds(settings: dict[str, str], name: str, default: int = 100) -> int:
    """Return a parameter in milliseconds, 1 or more. Raises ValueError for any other value."""
    return positive(settings, name, default, "milliseconds")


def positive(settings: dict[str, str], name: str, default: int, unit: str) -> int:
    """Return a parameter that is a number of `unit`, 1 or more. Raises ValueError for any other value."""
    value = settings.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"parameter {name} is {value!r}; it must be a number of {unit}, 1 or more")
    return int(value)


def decoupled(args: dict[str, str]) -> bool:
    """Return whether the model may send several responses to a request."""
    return bool(_config(args).get("model_transaction_policy", {}).get("decoupled", False))


def engine_options(settings: dict[str, str]) -> EngineOptions:
    """Return the engine's options from the model's parameters."""
    return EngineOptions(
        engine=settings["inflight_engine"],
        model_dir=settings["gpt_model_path"],
        kv_cache_tokens=_kv_cache_tokens(settings),
        max_num_sequences=int(settings["max_num_sequences"]),
        max_num_tokens=int(settings["max_num_tokens"]),
        itl_bound=_ratio(settings, "itl_bound", EngineOptions.itl_bound),
        stats_period_s=milliseconds(settings, "stats_check_period_ms") / 1000,
        stream_interval=positive(settings, "stream_interval", EngineOptions.stream_interval, "tokens"),
        threads=int(settings.get("threads", EngineOptions.threads)),
        max_queue_size=int(settings.get("max_queue_size", EngineOptions.max_queue_size)),
        skip_special_tokens=flag(settings, "skip_special_tokens", default=True),
        kv_cache_reuse=flag(settings, "enable_kv_cache_reuse", default=True),
        share_prefixes=flag(settings, "share_prefixes", default=False),
        chunked_context=flag(settings, "enable_chunked_context", default=True),
        draft_dir=settings.get("draft_model_path", ""),
        prompt_lookup=flag(settings, "prompt_lookup", default=False),
        num_draft_tokens=int(settings.get("num_draft_tokens", EngineOptions.num_draft_tokens)),
        reproducible=flag(settings, "reproducible", default=False),
        adapters=tuple(json.loads(settings.get("lora_adapters", "[]"))),
        extra=json.loads(settings.get("inflight_engine_options", "{}")),
    )


def _ratio(settings: dict[str, str], name: str, default: float) -> float:
    """Return a parameter that is 0 or a number of 1 or more. Raises ValueError for any other value."""
    value = settings.get(name, str(default))
    try:
        ratio = float(value)
    except ValueError:
        ratio = math.nan
    if not (ratio == 0 or 1 <= ratio < math.inf):
        raise ValueError(f"parameter {name} is {value!r}; it must be 0, or a number of 1 or more")
    return ratio


def _kv_cache_tokens(settings: dict[str, str]) -> int:
    """Return the size of the KV cache; 0 if unset, which only TensorRT-LLM allows. Raises ValueError otherwise."""
    tokens = settings.get("max_tokens_in_paged_kv_cache")
    if tokens is None and settings["inflight_engine"] not in _SIZES_OWN_KV_CACHE:
        raise ValueError("parameter max_tokens_in_paged_kv_cache is empty; give it a number of tokens")
    return int(tokens or 0)


def _config(args: dict[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(args["model_config"])
    return config
