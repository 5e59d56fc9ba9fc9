"""Generates token ids with in-flight batching; see inflight/runtime/triton/engine_model.py."""

from inflight.runtime.triton.engine_model import EngineModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
