"""Keeps Triton's iterators over a model's responses until Triton has released them.

The stub of Triton 2.51 also holds each iterator, and releases it after the last response was read, in a thread without
the interpreter lock. If that is the last reference, it frees numpy's arrays concurrently with Python code and corrupts
memory (triton-inference-server/python_backend#390). On a busy machine it often is the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class RetainedResponses:
    """Holds references to response iterators. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._retained: list[Any] = []
        self._closed = False

    def retain(self, *responses: Any) -> None:
        """Keep iterators that were read to their end."""
        with self._lock:
            if not self._closed:
                self._retained += responses

    def close(self) -> None:
        """Release all, while the memory that they share with Triton is mapped."""
        with self._lock:
            self._closed = True
            self._retained = []

    def release_after(self, ask: Callable[[], bool]) -> bool:
        """Call `ask`, which asks Triton whether a client has disconnected, and return its result.

        The thread that answers False has done all its earlier work before, so iterators kept until then are released.
        True may be cached.
        """
        with self._lock:
            kept, self._retained = self._retained, []
        answer = True
        try:
            answer = ask()
        finally:
            if answer:
                self.retain(*kept)
        return answer
