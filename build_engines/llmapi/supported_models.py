"""Checks that the LLM API supports a checkpoint's architecture before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_engines.capabilities.llmapi import LATER_ARCHITECTURES, SUPPORTED_ARCHITECTURES
from build_engines.capabilities.tensorrt_llm import CAPABILITIES
from build_engines.containers import ENGINE_LINE
from build_engines.errors import BuildError

_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def check_architecture(directory: Path, config: dict[str, Any], trust_remote_code: bool) -> tuple[str, ...]:
    """Return notes for the user about a supported architecture; `trust_remote_code` allows an unknown one.

    Raises BuildError (`unsupported_architecture`) if the model is not a text decoder or if no version of the library
    lists it; the message names a target that supports it.
    """
    name = str(config["architectures"][0])
    if config.get("is_encoder_decoder"):
        raise _refused(
            f"{directory} holds a {name}, which has an encoder, and only decoders can be built; "
            "use a decoder-only model that generates text (…ForCausalLM)."
        )
    if name in SUPPORTED_ARCHITECTURES:
        return ()
    if name in LATER_ARCHITECTURES:
        return (f"TensorRT-LLM 1.2 doesn't support {name}: it needs the container of a later version.",)
    if not name.endswith(_GENERATORS):
        raise _refused(f"{directory} holds a {name}, and only models that generate text (…ForCausalLM) can be built.")
    if trust_remote_code:
        return (f"TensorRT-LLM doesn't list {name}: the engine loads only if the version that serves it supports it.",)
    other = "build it with --target tensorrt-llm" if name in CAPABILITIES[ENGINE_LINE] else "use another model"
    raise _refused(
        f"{directory} holds a {name}, which TensorRT-LLM's LLM API doesn't list; {other}, or pass --llm-argument "
        "trust_remote_code=true if the version that will serve it supports it."
    )


def _refused(message: str) -> BuildError:
    return BuildError(message, "unsupported_architecture")
