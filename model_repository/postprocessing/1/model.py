"""Converts token ids to text; see inflight/runtime/triton/postprocessing.py."""

from inflight.runtime.triton.postprocessing import Postprocessing as TritonPythonModel

__all__ = ["TritonPythonModel"]
