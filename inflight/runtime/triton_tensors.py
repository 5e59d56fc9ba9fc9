"""Reading Triton requests and answering with errors, the same way in all models."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import RequestError

# Triton gives its module these names only after a model's file was imported, so they are looked up when used.
_STATUS = {
    "engine_died": "UNAVAILABLE",
    "engine_restarting": "UNAVAILABLE",
    "cancelled": "CANCELLED",
}


def scalar(request: Any, name: str, default: Any = None) -> Any:
    """The single value of an optional input, as a Python number; RequestError where there are several."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    values = tensor.as_numpy()
    if values.size != 1:
        raise RequestError(f"{name} holds {values.size} values; one is expected", "invalid_request")
    return values.item()


def triton_error(message: str, code: str) -> Any:
    """An error as Triton carries it: the sentence, the stable code behind it, and the nearest status."""
    status = getattr(pb_utils.TritonError, _STATUS.get(code, "INVALID_ARG"))
    return pb_utils.TritonError(f"{message} [{code}]", status)


def error_response(error: RequestError) -> Any:
    return pb_utils.InferenceResponse(output_tensors=[], error=triton_error(str(error), error.code))
