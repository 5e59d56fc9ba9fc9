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
    """Return what to know of an architecture that can be built; an unknown one can with `own_code` alone.

    Raises BuildError (`unsupported_architecture`) for what generates no text from tokens alone, and for what no version
    of the library lists, naming the target that has it.
    """
    name = str(config["architectures"][0])
    if config.get("is_encoder_decoder"):
        raise _refused(
            f"{directory} holds a {name}, which reads its prompt with an encoder, and only decoders can be built here; "
            "take a model that generates text by its decoder alone (…ForCausalLM)."
        )
    if name in SUPPORTED_ARCHITECTURES:
        return ()
    if name in LATER_ARCHITECTURES:
        return (
            f"TensorRT-LLM 1.2 doesn't run {name}: the engine needs a later version, whose container is another one.",
        )
    if not name.endswith(_GENERATORS):
        raise _refused(f"{directory} holds a {name}, and only models that generate text (…ForCausalLM) can be built.")
    if trust_remote_code:
        return (f"TensorRT-LLM lists no {name}: it loads where the version that serves it knows it all the same.",)
    other = "build it with --target tensorrt-llm" if name in CAPABILITIES[ENGINE_LINE] else "take another model"
    raise _refused(
        f"{directory} holds a {name}, which TensorRT-LLM's LLM API doesn't list; {other}, or say --llm-argument "
        "trust_remote_code=true if the version that will serve it knows it."
    )


def _refused(message: str) -> BuildError:
    return BuildError(message, "unsupported_architecture")
