"""Creates tensors and error responses, in the same way for all models."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.common.request_error import RequestError

# Triton adds these names to its module only after a model's file was imported, so they are read on use.
_STATUS = {
    "engine_died": "UNAVAILABLE",
    "engine_restarting": "UNAVAILABLE",
    "overloaded": "UNAVAILABLE",
    "unsupported_input": "UNSUPPORTED",
    "cancelled": "CANCELLED",
    "answer_damaged": "INTERNAL",
}


def tensor(name: str, values: Any, dtype: Any) -> Any:
    """Return an output tensor of nested lists or of one value."""
    return pb_utils.Tensor(name, np.array(values, dtype=dtype))


def triton_error(message: str, code: str) -> Any:
    """Return a Triton error: the sentence, the stable code after it, and the nearest status."""
    status = getattr(pb_utils.TritonError, _STATUS.get(code, "INVALID_ARG"))
    return pb_utils.TritonError(f"{message} [{code}]", status)


def as_request_error(error: Exception, model: str) -> RequestError:
    """Return a RequestError unchanged; convert any other exception to one and log it.

    An exception that leaves a model's `execute` would end all requests of the call.
    """
    if isinstance(error, RequestError):
        return error
    what = " ".join(f"{type(error).__name__}: {error}".split())
    pb_utils.Logger.log_error(f"a request to {model} failed: {what}")
    return RequestError(f"the request failed ({what}); the server's log may say more", "invalid_request")


def error_response(error: RequestError) -> Any:
    return pb_utils.InferenceResponse(output_tensors=[], error=triton_error(str(error), error.code))
