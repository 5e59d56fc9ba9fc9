"""A machine that runs a job whose state is carried, and may be lost."""

from __future__ import annotations

from pathlib import Path

from inflight.batch.carry import Carrier
from inflight.batch.job import InputSpec, Job, OutputSpec
from inflight.batch.job_directory import JobDirectory
from inflight.batch.row import Kind, Outcome
from inflight.batch.state.ledger import Ledger

OUTPUT = OutputSpec(address="s3://bucket/answers.parquet")


class Machine:
    """A disk with a job on it, whose rows are answered when a test says so."""

    def __init__(self, folder: Path, address: str) -> None:
        self.directory = JobDirectory.of(OUTPUT, folder / "one.job")
        self.carrier = Carrier(address, self.directory)
        self.ledger: Ledger | None = None

    def begin(self) -> None:
        self.directory.path.mkdir(parents=True, exist_ok=True)
        self.directory.write_job(Job(input=InputSpec(address="rows.jsonl"), output=OUTPUT))
        self.open()

    def open(self) -> None:
        self.ledger = Ledger(self.directory)

    def answer(self, count: int, text: str = "Answer") -> None:
        """The next rows, of which each fifth is a dead letter."""
        assert self.ledger is not None
        for number in range(self.ledger.next, self.ledger.next + count):
            kind = Kind.DEAD if number % 5 == 4 else Kind.OK
            line = b'{"id":%d,"text":"%s %d"}' % (number, text.encode(), number)
            self.ledger.add(Outcome(number, number + 1, str(number), kind, line))
        self.ledger.checkpoint()

    def send(self, last: bool = False) -> None:
        assert self.ledger is not None
        self.carrier.send(self.ledger.snapshot, last=last)

    def stands(self) -> tuple[int, list[bytes]]:
        """Rows that are done, and the lines of the answers, of a state that opens and agrees with its files."""
        ledger = Ledger(self.directory)
        ledger.recover()
        done, lengths = ledger.next, ledger.lengths()
        ledger.close()
        for kind in Kind:
            path = self.directory.lines(kind)
            assert (path.stat().st_size if path.exists() else 0) == lengths[kind]
        return done, self.directory.lines(Kind.OK).read_bytes().splitlines()

    def close(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None
