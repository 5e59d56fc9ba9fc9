"""How far a job is: what `status`, the progress bar, the metrics and the manifest all tell."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from inflight.batch.row import Kind, Outcome


@dataclass
class Counts:
    """Rows by what became of them, and what they cost. Kept in the state with every checkpoint, across a job's lives.

    `seconds` is the time that lives of the job have run; `codes` counts errors and dead letters by code.
    """

    ok: int = 0
    error: int = 0
    dead: int = 0
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    lives: int = 0
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.ok + self.error + self.dead

    def add(self, outcome: Outcome) -> None:
        setattr(self, outcome.kind, getattr(self, outcome.kind) + 1)
        self.retries += max(0, outcome.attempts - 1)
        self.input_tokens += outcome.tokens[0]
        self.output_tokens += outcome.tokens[1]
        if outcome.kind is not Kind.OK:
            self.codes[outcome.code] = self.codes.get(outcome.code, 0) + 1

    def values(self) -> dict[str, Any]:
        return asdict(self)
