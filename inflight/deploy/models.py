"""The models of a repository, by their names."""

from __future__ import annotations

ENGINE_MODEL = "tensorrt_llm"
SCRIPTED_MODEL = "tensorrt_llm_bls"
TEXT_MODELS = ("ensemble", SCRIPTED_MODEL)
"""Those that clients send text to, in the order in which they are unloaded."""


def flag(value: bool) -> str:
    """As config.pbtxt has it."""
    return "true" if value else "false"


_OPTIONS = {
    "adapters": "--lora",
    "settings": "--set",
    "decoupled": "--no-decoupled",
    "kv_cache_reuse": "--no-kv-cache-reuse",
}


def option(name: str) -> str:
    """What the command line calls a field of DeploymentOptions."""
    return _OPTIONS.get(name, "--" + name.replace("_", "-"))
