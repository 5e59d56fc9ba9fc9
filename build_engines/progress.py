"""The interface for progress of long work; the commands decide how to show it."""

from __future__ import annotations

from typing import Protocol


class BuildProgress(Protocol):
    """Receives progress: a sentence for each step, and bytes done for some of them."""

    def step(self, sentence: str) -> None:
        """Start a new step."""

    def advance(self, done: int, total: int) -> None:
        """Report the bytes done in the current step."""


class NoBuildProgress:
    """Progress that is discarded."""

    def step(self, sentence: str) -> None:
        pass

    def advance(self, done: int, total: int) -> None:
        pass
