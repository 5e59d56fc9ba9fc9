"""The models of a repository, by their names."""

from __future__ import annotations

ENGINE_MODEL = "tensorrt_llm"
BLS_MODEL = "tensorrt_llm_bls"
CPP_BACKEND = "tensorrtllm"
"""The name of TensorRT-LLM's C++ backend in Triton."""
TEXT_MODELS = ("ensemble", BLS_MODEL)
"""Those that clients send text to, in the order in which they are unloaded."""


def pbtxt_bool(value: bool) -> str:
    """As config.pbtxt has it."""
    return "true" if value else "false"


_OPTION_NAMES = {
    "adapters": "--lora",
    "settings": "--set",
    "decoupled": "--no-decoupled",
    "kv_cache_reuse": "--no-kv-cache-reuse",
}


def option_name(name: str) -> str:
    """What the command line calls a field of DeploymentOptions."""
    return _OPTION_NAMES.get(name, "--" + name.replace("_", "-"))
