"""How long work says where it is; the commands decide how that looks."""

from __future__ import annotations

from typing import Protocol


class BuildProgress(Protocol):
    """Hears what is being done: a sentence for each step, and for some of them how far they are."""

    def step(self, sentence: str) -> None:
        """A new step begins."""

    def advance(self, done: int, total: int) -> None:
        """So many bytes of the present step are done."""


class NoBuildProgress:
    """Progress that nobody listens to."""

    def step(self, sentence: str) -> None:
        pass

    def advance(self, done: int, total: int) -> None:
        pass
