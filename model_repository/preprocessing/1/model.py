"""Converts text to token ids; see inflight/runtime/triton/preprocessing.py."""

from inflight.runtime.triton.preprocessing import Preprocessing as TritonPythonModel

__all__ = ["TritonPythonModel"]
