"""Runs at several rates, made to find the highest at which the promise holds."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.analysis.summary import Summary


@dataclass(frozen=True)
class Step:
    """One run: at which rate (sessions a second, or users), in which directory, what came of it.

    `kept` says that all bounds of the promise were kept.
    """

    rate: float
    run: str
    summary: Summary
    kept: bool


@dataclass(frozen=True)
class Sweep:
    """All runs in the order in which they were made; a rate may have been tried more than once.

    `highest` is the highest rate at which the promise was found to hold, `lowest_broken` the lowest above it at which
    it was not; None where there was none. `settled` says that they are within the tolerance, a ratio less 1;
    otherwise the search had no runs left. `confirmed` says that the promise held at `highest` in more runs than one.
    """

    promise: tuple[str, ...]
    steps: tuple[Step, ...]
    highest: float | None
    lowest_broken: float | None
    tolerance: float
    settled: bool
    unit: str = "sessions/s"
    """Or `users`, of closed loops."""
    interrupted: bool = False
    """Ctrl-C ended the search."""
    confirmed: bool = False
    failure: str = ""
    """Why no further run could be made, in a sentence: the server died, say. Those before count."""

    @property
    def best(self) -> Step | None:
        """The last run at the highest rate that kept the promise."""
        kept = [step for step in self.steps if step.kept and step.rate == self.highest]
        return kept[-1] if kept else None
