"""Merges the parts' lines in the order of the input, as if one job had written them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import orjson

from inflight.batch.dispatch.prefetcher import duplicate_row
from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.job.counts import WORK, Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.job.spec import InputPart, Task
from inflight.batch.outputs.answer_record import parse_answer
from inflight.batch.ray.aggregate_status import add_counts
from inflight.batch.ray.shared_facts import RETRIEVAL_TASKS
from inflight.batch.session import JobSession
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.line_file import read_lines

_ROWS = 10_000
"""Rows between two checkpoints of the whole job."""


class PartMerger:
    """Copies the results in the parts' ledgers to the whole job's ledger, one part after the other.

    If rows of several parts have the same id, the first one keeps it; the others become dead letters, as in a job
    without parts. After an interruption the merge starts again, and the ledger skips what it has. Raises BatchError.
    """

    def __init__(
        self,
        session: JobSession,
        parts: Sequence[InputPart],
        directories: Sequence[JobDirectory],
        checkpoint: Callable[[], None],
    ) -> None:
        self._session, self._ledger, self._checkpoint = session, session.ledger, checkpoint
        self._parts = list(zip(parts, directories, strict=True))

    def run(self) -> None:
        rows = self._ledger.next
        spent = Counts(**self._ledger.recall("counts_before_parts"))
        for part, directory in self._parts:
            rows = part.first + (part.rows or 0)
            with closing(Ledger(directory, part.first)) as ledger:
                if ledger.next != rows:
                    raise BatchError(f"the part at {directory.path} is not done; start a new job", "job_damaged")
                add_counts(spent, ledger.counts)
                if (build := ledger.recall("build")) is not None:
                    self._session.bind_build(build)
                for task in RETRIEVAL_TASKS:
                    if (build := ledger.recall(f"{task}_build")) is not None:
                        self._session.bind_encoder(task, build)
        self._count(spent)  # all of it, so that a resumed merge counts it only once
        for part, directory in self._parts:
            if self._ledger.next < part.first + (part.rows or 0):
                with closing(Ledger(directory, part.first)) as ledger:
                    self._merge_part(part, directory, ledger)
        self._count(spent)
        self._ledger.remember("rows", rows)

    def _count(self, spent: Counts) -> None:
        for name in WORK:
            setattr(self._ledger.counts, name, getattr(spent, name))

    def _merge_part(self, part: InputPart, directory: JobDirectory, ledger: Ledger) -> None:
        letters = self._dead_letters(part, self._duplicates(part, directory, ledger))
        with closing(_outcomes(part, directory, ledger)) as outcomes:
            while block := list(islice(outcomes, _ROWS)):
                for result in block:
                    self._ledger.add(letters.get(result.number, result))
                if block[-1].number == part.first + (part.rows or 0) - 1 and ledger.position is not None:
                    self._ledger.record_positions([(block[-1].number, ledger.line, ledger.position)])
                failpoint("merge")
                self._checkpoint()
                failpoint("merged")

    def _duplicates(self, part: InputPart, directory: JobDirectory, ledger: Ledger) -> set[int]:
        """Return the rows of a part whose id an earlier part has, or the same part if the output treats ids as equal
        that the part's own lines distinguish.
        """
        doubles: set[int] = set()
        if self._session.output is not None and self._session.output.is_incremental:
            with closing(_outcomes(part, directory, ledger)) as outcomes:
                while some := list(islice(outcomes, _ROWS)):
                    ids = [(_claimed(result, self._session.job.task), result.number) for result in some]
                    normalize = self._session.normalize_id
                    doubles |= self._ledger.claim_ids([(normalize(str(id_)), n) for id_, n in ids if id_ is not None])
            return doubles
        hashed = ledger.database.execute("SELECT id, number FROM ids")
        while block := hashed.fetchmany(_ROWS):
            doubles |= self._ledger.claim_hashed(block)
        return doubles

    def _dead_letters(self, part: InputPart, duplicates: set[int]) -> dict[int, RowResult]:
        """Return the dead letters of these rows, which contain values of the input."""
        letters: dict[int, RowResult] = {}
        if not duplicates:
            return letters
        for number, record in enumerate(self._session.source.read(part.after, part.line), part.first):
            if number in duplicates:
                letters[number] = self._session.row_format.format_invalid(
                    duplicate_row(self._session.row_format.parse(number, record))
                )
                if len(letters) == len(duplicates):
                    break
        return letters


def _outcomes(part: InputPart, directory: JobDirectory, ledger: Ledger) -> Generator[RowResult]:
    """Yield the result of each row of a part, in order, without tokens and attempts, which are in the part's counts."""
    answers, errors = (read_lines(directory.result_file(status)) for status in (RowStatus.OK, RowStatus.ERROR))
    dead: dict[int, bytes] = {
        orjson.loads(line)["line"]: line for line in read_lines(directory.result_file(RowStatus.DEAD))
    }
    columns = "number, line, id, status, code, message, attempts"
    failed = ledger.database.execute(f"SELECT {columns} FROM failures ORDER BY number")
    failure = next(failed, None)
    for number in range(part.first, part.first + (part.rows or 0)):
        if failure is None or failure[0] != number:
            yield RowResult(number, 0, None, RowStatus.OK, next(answers))
            continue
        _, line, id, status, code, message, attempts = failure
        text = dead[line] if status == RowStatus.DEAD else next(errors)
        yield RowResult(number, line, id, RowStatus(status), text, code, message, attempts=attempts)
        failure = next(failed, None)


def _claimed(result: RowResult, task: Task) -> Any:
    """Return the id that a row claims; None for a dead letter that was never sent."""
    if result.status is RowStatus.OK:
        return parse_answer(result.text, task).id
    return result.id if result.status is RowStatus.ERROR or result.code == "row_crashed_engine" else None
