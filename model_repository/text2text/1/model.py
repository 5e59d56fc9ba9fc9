"""Makes texts from texts; see inflight/runtime/triton/encoders/model.py."""

from inflight.runtime.triton.encoders.model import EncoderModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
