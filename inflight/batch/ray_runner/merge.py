"""The parts' lines put together in the order of the input, as if one job had written them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import orjson

from inflight.batch.counts import Counts
from inflight.batch.destinations.answer import read_answer
from inflight.batch.errors import BatchError
from inflight.batch.failpoints import reach
from inflight.batch.feed import double
from inflight.batch.job import Part
from inflight.batch.job_directory import JobDirectory
from inflight.batch.opening import OpenJob
from inflight.batch.ray_runner.together import add
from inflight.batch.row import Kind, Outcome
from inflight.batch.state.ledger import Ledger

_ROWS = 10_000
"""Between two checkpoints of the whole job."""


class Merge:
    """Gives the whole job's ledger the outcomes that the parts' ledgers hold, one part after the other.

    An id that rows of several parts have belongs to the first of them; the others become dead letters, as in a job
    without parts. Broken off, it begins again, and the ledger passes over what it has. Raises BatchError.
    """

    def __init__(
        self,
        job: OpenJob,
        parts: Sequence[Part],
        directories: Sequence[JobDirectory],
        checkpoint: Callable[[], None],
    ) -> None:
        self._job, self._ledger, self._checkpoint = job, job.ledger, checkpoint
        self._parts = list(zip(parts, directories, strict=True))

    def run(self) -> None:
        rows = self._ledger.next
        spent = Counts(**self._ledger.recall("before_parts"))
        for part, directory in self._parts:
            rows = part.first + (part.rows or 0)
            with closing(Ledger(directory, part.first)) as ledger:
                if ledger.next != rows:
                    raise BatchError(f"the part at {directory.path} is not done; begin a new job", "job_damaged")
                add(spent, ledger.counts)
                if (build := ledger.recall("build")) is not None:
                    self._job.bind_build(build)
        self._count(spent)  # all of it, whoever goes on where this is broken off
        for part, directory in self._parts:
            if self._ledger.next < part.first + (part.rows or 0):
                with closing(Ledger(directory, part.first)) as ledger:
                    self._take(part, directory, ledger)
        self._count(spent)
        self._ledger.remember("rows", rows)

    def _count(self, spent: Counts) -> None:
        counts = self._ledger.counts
        counts.retries = spent.retries
        counts.input_tokens, counts.output_tokens = spent.input_tokens, spent.output_tokens

    def _take(self, part: Part, directory: JobDirectory, ledger: Ledger) -> None:
        letters = self._letters(part, self._doubles(part, directory, ledger))
        with closing(_outcomes(part, directory, ledger)) as outcomes:
            while block := list(islice(outcomes, _ROWS)):
                for one in block:
                    self._ledger.add(letters.get(one.number, one))
                if block[-1].number == part.first + (part.rows or 0) - 1 and ledger.position is not None:
                    self._ledger.mark([(block[-1].number, ledger.line, ledger.position)])
                reach("merge")
                self._checkpoint()
                reach("merged")

    def _doubles(self, part: Part, directory: JobDirectory, ledger: Ledger) -> set[int]:
        """The rows of a part whose id a row of an earlier part has; or of the same part, where the output takes ids for
        one that the part, which writes lines, has told apart.
        """
        doubles: set[int] = set()
        if self._job.destination is not None and self._job.destination.takes_rows:
            with closing(_outcomes(part, directory, ledger)) as outcomes:
                while some := list(islice(outcomes, _ROWS)):
                    ids = [(str(id_), one.number) for one in some if (id_ := _claimed(one)) is not None]
                    doubles |= self._ledger.claim([(self._job.one_key(id_), number) for id_, number in ids])
            return doubles
        hashed = ledger.database.execute("SELECT id, number FROM ids")
        while block := hashed.fetchmany(_ROWS):
            doubles |= self._ledger.claim_hashed(block)
        return doubles

    def _letters(self, part: Part, doubles: set[int]) -> dict[int, Outcome]:
        """Their dead letters, which tell what only the input knows of them."""
        found: dict[int, Outcome] = {}
        if not doubles:
            return found
        for number, record in enumerate(self._job.source.read(part.after, part.line), part.first):
            if number in doubles:
                found[number] = self._job.form.faulty(double(self._job.form.row(number, record)))
                if len(found) == len(doubles):
                    break
        return found


def _outcomes(part: Part, directory: JobDirectory, ledger: Ledger) -> Generator[Outcome]:
    """What became of each row of a part, in order. Tokens and attempts are in the part's counts, and not told again."""
    answers, errors = _lines(directory, Kind.OK), _lines(directory, Kind.ERROR)
    dead: dict[int, bytes] = {orjson.loads(line)["line"]: line for line in _lines(directory, Kind.DEAD)}
    failed = _failed(ledger)
    failure = next(failed, None)
    for number in range(part.first, part.first + (part.rows or 0)):
        if failure is None or failure[0] != number:
            yield Outcome(number, 0, None, Kind.OK, next(answers))
            continue
        _, line, id, kind, code, message, attempts = failure
        text = dead[line] if kind == Kind.DEAD else next(errors)
        yield Outcome(number, line, id, Kind(kind), text, code, message, attempts=attempts)
        failure = next(failed, None)


def _claimed(one: Outcome) -> Any:
    """The id that a row has for itself; None where it is a dead letter that was never asked."""
    if one.kind is Kind.OK:
        return read_answer(one.text).id
    return one.id if one.kind is Kind.ERROR or one.code == "row_kills_engine" else None


def _failed(ledger: Ledger) -> Iterator[tuple[Any, ...]]:
    yield from ledger.database.execute(
        "SELECT number, line, id, kind, code, message, attempts FROM failures ORDER BY number"
    )


def _lines(directory: JobDirectory, kind: Kind) -> Iterator[bytes]:
    path = directory.lines(kind)
    if path.exists():
        with path.open("rb") as file:
            yield from (line.rstrip(b"\n") for line in file)
