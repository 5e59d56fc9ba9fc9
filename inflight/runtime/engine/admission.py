"""A limit on concurrent requests, and the error for one beyond it."""

from __future__ import annotations

import threading

from inflight.common.request_error import RequestError


def queue_full_error(limit: int, what: str = "") -> RequestError:
    """Return the error for a request beyond `limit`, in the words of Triton and TensorRT-LLM that clients look for."""
    of = f" of {what}" if what else ""
    return RequestError(
        f"Exceeds maximum queue size{of} (Maximum queue size of {limit} has been reached); send the request again"
        " later",
        "overloaded",
    )


class AdmissionSlots:
    """At most `limit` slots, each held for the duration of a `with` block. One more raises at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = threading.BoundedSemaphore(limit)

    def __enter__(self) -> None:
        if not self._free.acquire(blocking=False):
            raise queue_full_error(self._limit)

    def __exit__(self, *_: object) -> None:
        self._free.release()
