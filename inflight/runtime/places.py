"""A bound on how many requests something may hold, and how one more is refused."""

from __future__ import annotations

import threading

from inflight.runtime.messages import RequestError


def too_many(most: int, what: str = "") -> RequestError:
    """What one more than `most` is refused with: Triton's words and TensorRT-LLM's, since clients look for either."""
    of = f" of {what}" if what else ""
    return RequestError(
        f"Exceeds maximum queue size{of} (Maximum queue size of {most} has been reached); send the request again later",
        "overloaded",
    )


class Places:
    """So many at a time, each for as long as its `with` block runs. Nobody waits: one more is refused at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = threading.BoundedSemaphore(most)

    def __enter__(self) -> None:
        if not self._free.acquire(blocking=False):
            raise too_many(self._most)

    def __exit__(self, *_: object) -> None:
        self._free.release()
