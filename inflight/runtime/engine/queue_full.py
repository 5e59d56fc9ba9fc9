"""The error for a request beyond a limit."""

from __future__ import annotations

from inflight.common.request_error import RequestError


def queue_full_error(limit: int, what: str = "") -> RequestError:
    """Return the error for a request beyond `limit`, in the words of Triton and TensorRT-LLM that clients look for."""
    of = f" of {what}" if what else ""
    return RequestError(
        f"Exceeds maximum queue size{of} (Maximum queue size of {limit} has been reached); send the request again"
        " later",
        "overloaded",
    )
