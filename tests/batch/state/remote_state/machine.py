"""A machine that runs a job whose state is uploaded, and may be lost."""

from __future__ import annotations

from pathlib import Path

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.remote_state import RemoteState

OUTPUT = OutputSpec(address="s3://bucket/answers.parquet")


class JobMachine:
    """A disk with a job on it, whose rows are answered when a test says so."""

    def __init__(self, folder: Path, address: str) -> None:
        self.directory = JobDirectory.from_output(OUTPUT, folder / "one.job")
        self.remote_state = RemoteState(address, self.directory)
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
            kind = RowStatus.DEAD if number % 5 == 4 else RowStatus.OK
            line = b'{"id":%d,"text":"%s %d"}' % (number, text.encode(), number)
            self.ledger.add(RowResult(number, number + 1, str(number), kind, line))
        self.ledger.checkpoint()

    def send(self, last: bool = False) -> None:
        assert self.ledger is not None
        self.remote_state.upload(self.ledger.snapshot, final=last)

    def recovered(self) -> tuple[int, list[bytes]]:
        """Rows that are done, and the lines of the answers, of a state that opens and agrees with its files."""
        ledger = Ledger(self.directory)
        ledger.recover()
        done, lengths = ledger.next, ledger.lengths()
        ledger.close()
        for kind in RowStatus:
            path = self.directory.result_file(kind)
            assert (path.stat().st_size if path.exists() else 0) == lengths[kind]
        return done, self.directory.result_file(RowStatus.OK).read_bytes().splitlines()

    def close(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None
