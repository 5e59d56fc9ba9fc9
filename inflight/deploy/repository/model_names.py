"""Names of a repository's models."""

from __future__ import annotations

ENGINE_MODEL = "tensorrt_llm"
BLS_MODEL = "tensorrt_llm_bls"
CPP_BACKEND = "tensorrtllm"
"""The name of TensorRT-LLM's C++ backend in Triton."""
TEXT_MODELS = ("ensemble", BLS_MODEL)
"""The models to which clients send text, in the order in which they are unloaded."""


def pbtxt_bool(value: bool) -> str:
    """Return a boolean in config.pbtxt's form."""
    return "true" if value else "false"


_OPTION_NAMES = {
    "adapters": "--lora",
    "settings": "--set",
    "decoupled": "--no-decoupled",
    "kv_cache_reuse": "--no-kv-cache-reuse",
}


def option_name(name: str) -> str:
    """Return the command line's name of a field of DeploymentOptions."""
    return _OPTION_NAMES.get(name, "--" + name.replace("_", "-"))
