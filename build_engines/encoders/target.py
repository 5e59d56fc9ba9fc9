"""Finds the target of an engine that embeds, reranks or classifies texts."""

from __future__ import annotations

import importlib

from build_engines.errors import BuildError
from build_engines.target import BuildOptions, Target

# Each module has `target(options) -> Target`, and is imported only if its target is chosen.
_MODULES = {
    "openvino": "build_engines.encoders.openvino_target",
    "llmapi": "build_engines.encoders.llmapi_target",
    "tensorrt": "build_engines.encoders.tensorrt_target",
}


def target(options: BuildOptions) -> Target:
    """Return the target for `options`, which name a task.

    Raises BuildError (`invalid_parameter`) for options of generation, and the target's own errors.
    """
    if options.kv_precision is not None:
        raise BuildError(
            f"An engine with the task {options.task} has no KV cache; leave --kv-cache-precision out.",
            "invalid_parameter",
        )
    found: Target = importlib.import_module(_MODULES[options.target]).target(options)
    return found
