"""The counts of a job, for `status`, the progress bar, the metrics and the manifest."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from inflight.batch.job.rows import RowResult, RowStatus

WORK = (
    *("retries", "input_tokens", "output_tokens", "texts", "empty"),
    *("copies", "refined", "refine_input_tokens", "refine_output_tokens", "audio_seconds"),
)
"""The counts that the rows' own lines do not show."""


@dataclass
class Counts:
    """Rows by status, and their cost. Saved in the state with every checkpoint, over all runs of the job.

    `seconds` is the total time of the runs; `codes` counts errors and dead letters by code.
    `texts`: those that were embedded, classified or scored.
    """

    ok: int = 0
    error: int = 0
    dead: int = 0
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    runs: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    texts: int = 0
    empty: int = 0
    """Answered rows whose answer has no text."""
    copies: int = 0
    """Rows with the answer of an identical row."""
    refined: int = 0
    """Rows with the answer of the model of --refine-with; the next two are its part of the tokens, of all rows."""
    refine_input_tokens: int = 0
    refine_output_tokens: int = 0
    audio_seconds: float = 0.0
    """Of the audio that was transcribed, copies included."""

    @property
    def done(self) -> int:
        return self.ok + self.error + self.dead

    def add(self, result: RowResult) -> None:
        setattr(self, result.status, getattr(self, result.status) + 1)
        self.retries += max(0, result.attempts - 1)
        self.input_tokens += result.tokens[0]
        self.output_tokens += result.tokens[1]
        self.texts += result.texts
        self.empty += result.empty
        self.copies += result.copied
        self.refined += result.refined
        self.refine_input_tokens += result.refine_tokens[0]
        self.refine_output_tokens += result.refine_tokens[1]
        self.audio_seconds += result.audio_seconds
        if result.status is not RowStatus.OK:
            self.codes[result.code] = self.codes.get(result.code, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
