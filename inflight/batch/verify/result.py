"""What verifying a job has found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_EXAMPLES = 10


@dataclass(frozen=True)
class Findings:
    """How many of something, and the first of them."""

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
    """Rows of the input, records of the files of lines, and how both agree.

    `missing`: ids (or lines) of rows without a record; where the job is not `finished` these are its open rows.
    `twice`: whose record is there more than once; `unknown`: whose record belongs to no row; `unreadable`: lines of
    files that are no record. `output`: ids of answers that the output itself lacks or has otherwise.
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
        """Whether nothing is wrong with what is there, be the job finished or not."""
        wrong = (self.duplicates, self.unknown, self.unreadable, self.output)
        done = self.rows - self.missing.count == self.ok + self.error + self.dead
        return done and not self.output_error and not any(one.count for one in wrong)

    def messages(self) -> list[str]:
        """For people: the sum, and each thing that is wrong."""
        sum_ = f"{self.rows:,} rows = {self.ok:,} ok + {self.error:,} error + {self.dead:,} dead"
        if self.missing.count:
            sum_ += f" + {self.missing.count:,} {'missing' if self.finished else 'open'}"
        if self.complete:
            return [f"{sum_}: every row exactly once."]
        told = [f"{sum_}."]
        if not self.finished:
            told.append("The job is not finished; resume it.")
        elif self.missing.count:
            told.append(f"Rows without a record: {self.missing}.")
        for what, found in (
            ("Records that are there more than once", self.duplicates),
            ("Records that belong to no row", self.unknown),
            ("Lines that can't be read", self.unreadable),
            ("Answers that the output lacks, or has otherwise", self.output),
        ):
            if found.count:
                told.append(f"{what}: {found}.")
        return [*told, self.output_error] if self.output_error else told
