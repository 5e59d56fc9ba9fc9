"""Avoids two faults of Triton's iterators over a model's responses, in the stub of Triton 2.51 and later ones.

Iterators are kept until Triton has released them. The stub also holds each iterator, and releases it after the last
response was read, in a thread without the interpreter lock. If that is the last reference, it frees numpy's arrays
concurrently with Python code and corrupts memory (triton-inference-server/python_backend#390). On a busy machine it
often is the last.

No call returns while a thread waits for a response. The stub's thread that delivers responses holds the lock of all
iterators while it waits for that of one; a thread that an earlier response has just woken keeps that until it gets the
interpreter lock; and a call that returns keeps this until it gets the lock of all iterators. Then none continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any


class Turns:
    """Lets threads of two kinds run, any number of one kind at a time, and the kinds by turns. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = [0, 0]
        self._waiting = [0, 0]
        self._next = 0

    @contextmanager
    def of(self, kind: int) -> Iterator[None]:
        """Run the body while threads of no other kind than this, 0 or 1, run theirs."""
        other = 1 - kind
        with self._changed:
            if self._inside[other]:
                self._next = kind  # further threads of the other kind wait for this one
            self._waiting[kind] += 1
            self._changed.wait_for(lambda: not self._inside[other] and (self._next == kind or not self._waiting[other]))
            self._waiting[kind] -= 1
            self._inside[kind] += 1
            if self._waiting[other]:
                self._next = other
        try:
            yield
        finally:
            with self._changed:
                self._inside[kind] -= 1
                if not self._inside[kind]:
                    self._changed.notify_all()


class RetainedResponses:
    """Calls decoupled models, and holds references to the iterators over their responses. Thread-safe."""

    def __init__(self, *, prompt: bool = True) -> None:
        """`prompt`: the models send each response soon after it is waited for, so that calls can wait meanwhile."""
        self._turns = Turns() if prompt else None
        self._lock = threading.Lock()
        self._retained: list[Any] = []
        self._closed = False

    def call(self, request: Any) -> Iterator[Any]:
        """Send a request to a decoupled model; return its responses once the first one has come. They are read once."""
        with self._turn(0):
            responses = request.exec(decoupled=True)
        return self._each(responses)

    def _turn(self, kind: int) -> AbstractContextManager[None]:
        return nullcontext() if self._turns is None else self._turns.of(kind)

    def _each(self, responses: Any) -> Iterator[Any]:
        try:
            yield from islice(responses, 1)  # which is there already
            while True:
                with self._turn(1):
                    response = next(responses, None)
                if response is None:
                    return
                yield response
        finally:
            self.retain(responses)

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
