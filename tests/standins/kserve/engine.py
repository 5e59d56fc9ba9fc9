"""What answers: the prompt's tokens over and over, one a step, of all requests that run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

MAX_PROMPT_TOKENS = 1024
LOG_PROB = -0.5
"""Of every token, as the fake engine's."""


@dataclass(eq=False)
class RunningRequest:
    """One request that is being answered."""

    id: str
    prompt_ids: list[int]
    max_tokens: int
    gone: threading.Event
    """Set when its client has gone."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set when a request with `stop` and its id came."""
    arrival_ns: int = field(default_factory=time.monotonic_ns)
    first_token_ns: int = 0
    last_token_ns: int = 0


class StandInEngine:
    def __init__(self, tokenizer: Path, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self._tokenizer = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        self._lock = threading.Lock()
        self._runs: list[RunningRequest] = []
        self.cancels = 0
        """Requests that ended early: stopped by their id, or left by their client."""

    @property
    def in_flight(self) -> int:
        return len(self._runs)

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    @contextmanager
    def running(self, run: RunningRequest) -> Iterator[Iterator[int]]:
        """Register a request and give its tokens, which end early once it is stopped or its client has gone.

        Raises ValueError in upstream's words for a prompt that it takes none of.
        """
        if not run.prompt_ids:
            raise ValueError("Prompt must not be empty")
        if len(run.prompt_ids) > MAX_PROMPT_TOKENS:
            raise ValueError(
                f"Prompt length ({len(run.prompt_ids)}) exceeds maximum input length ({MAX_PROMPT_TOKENS})."
            )
        with self._lock:
            self._runs.append(run)
        try:
            yield self._tokens(run)
        finally:
            with self._lock:
                self.cancels += run.stopped.is_set() or run.gone.is_set()
                self._runs.remove(run)

    def stop(self, request_id: str) -> None:
        with self._lock:
            for run in self._runs:
                if run.id == request_id:
                    run.stopped.set()

    def end(self) -> None:
        """End whatever runs."""
        with self._lock:
            for run in self._runs:
                run.gone.set()

    def _tokens(self, run: RunningRequest) -> Iterator[int]:
        for position in range(run.max_tokens):
            if run.stopped.wait(self.step_seconds) or run.gone.is_set():
                return
            run.last_token_ns = time.monotonic_ns()
            run.first_token_ns = run.first_token_ns or run.last_token_ns
            yield run.prompt_ids[position % len(run.prompt_ids)]
