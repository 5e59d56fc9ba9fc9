"""The result of verifying a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_EXAMPLES = 10


@dataclass(frozen=True)
class Findings:
    """The number of findings of one kind, and the first of them."""

    count: int = 0
    first: tuple[str, ...] = ()

    @classmethod
    def from_items(cls, things: Iterable[str]) -> Findings:
        count = 0
        first: list[str] = []
        for thing in things:
            count += 1
            if len(first) < _EXAMPLES:
                first.append(thing)
        return cls(count, tuple(first))

    def __str__(self) -> str:
        return f"{self.count} ({', '.join(self.first)}{', ...' if self.count > len(self.first) else ''})"


@dataclass(frozen=True)
class VerificationResult:
    """Rows of the input, records of the files of lines, and whether they agree.

    `missing`: ids (or lines) of rows without a record; if the job is not `finished`, these are its open rows.
    `duplicates`: rows with more than one record; `unknown`: records that belong to no row; `unreadable`: lines that are
    not records. `output`: ids of answers that are missing from the output or different.
    """

    rows: int
    ok: int
    error: int
    dead: int
    finished: bool
    missing: Findings = Findings()
    duplicates: Findings = Findings()
    unknown: Findings = Findings()
    unreadable: Findings = Findings()
    output: Findings = Findings()
    output_error: str = ""
    """Why the output could not be read."""

    @property
    def complete(self) -> bool:
        """Whether the job is finished, and input = ok + error + dead, each row once, and all in the output."""
        return self.finished and not self.missing.count and self.consistent

    @property
    def consistent(self) -> bool:
        """Whether everything that exists is right, even if the job is not finished."""
        wrong = (self.duplicates, self.unknown, self.unreadable, self.output)
        done = self.rows - self.missing.count == self.ok + self.error + self.dead
        return done and not self.output_error and not any(one.count for one in wrong)

    def messages(self) -> list[str]:
        """Return sentences for people: the sum, and each problem."""
        sum_ = f"{self.rows:,} rows = {self.ok:,} ok + {self.error:,} error + {self.dead:,} dead"
        if self.missing.count:
            sum_ += f" + {self.missing.count:,} {'missing' if self.finished else 'open'}"
        if self.complete:
            return [f"{sum_}: every row exactly once."]
        lines = [f"{sum_}."]
        if not self.finished:
            lines.append("The job is not finished; resume it.")
        elif self.missing.count:
            lines.append(f"Rows without a record: {self.missing}.")
        for what, found in (
            ("Rows with more than one record", self.duplicates),
            ("Records that belong to no row", self.unknown),
            ("Lines that can't be read", self.unreadable),
            ("Answers that are missing from the output or different", self.output),
        ):
            if found.count:
                lines.append(f"{what}: {found}.")
        return [*lines, self.output_error] if self.output_error else lines
