"""Keeps Triton's iterators over a model's responses until Triton itself has let go of them.

The stub of Triton 2.51 has each iterator too, and lets go of it after the last response was read, in a thread that does
not hold the interpreter lock. If it is the last to do so, it frees numpy's arrays there, beside a thread that runs
Python, and memory is damaged (triton-inference-server/python_backend#390). On a busy machine it often is the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class RetainedResponses:
    """Thread-safe."""

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
        """Let go of all, while the memory is there that they share with Triton."""
        with self._lock:
            self._closed = True
            self._retained = []

    def release_after(self, ask: Callable[[], bool]) -> bool:
        """Whether `ask` says so, which asks Triton whether a client has gone.

        The thread that answers a no has done before whatever it was given before, so what was kept until then is let
        go of. A yes may be an earlier one.
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
