"""An output file that is created from the job's lines at the end; errors and dead letters are beside it."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, Protocol, cast

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import Task
from inflight.batch.outputs.answer_record import (
    ANSWER_FIELDS,
    parse_answer,
    read_answer_records,
    same_content,
    vector_of,
)
from inflight.batch.outputs.interface import OnMessage, OutputWriter, ignore_message
from inflight.batch.storage.addresses import is_local
from inflight.batch.storage.atomic_output import atomic_output, check_writable, sibling_address
from inflight.batch.storage.files import StoredFile
from inflight.batch.storage.secret_address import masked

_COPY_BYTES = 1 << 20
_EXTRA_FILES = {RowStatus.ERROR: "errors", RowStatus.DEAD: "dead"}


class OutputFormat(Protocol):
    """The file format of an output."""

    def write(self, answers: Path | None, file: IO[bytes]) -> None:
        """Write all answers of a job's file of lines; None if there are none."""

    def read(self, file: StoredFile) -> Iterator[tuple[str, Any]]:
        """Yield the id of each answer, and the answer itself as in its record. Raises BatchError, or ValueError for an
        invalid file."""


class FileOutput(OutputWriter):
    """An output file; `source` is the address of the job's input.

    Before the job creates a file on a disk, it records that in its directory, so that another job whose error and dead
    letter files have the same names does not overwrite them. A job whose output is in object storage may continue
    on another machine, and has no such records.
    """

    def __init__(
        self, address: str, output_format: OutputFormat, directory: JobDirectory, source: str, task: Task = "generate"
    ) -> None:
        self._task = task
        self._address, self._format, self._directory, self._source = address, output_format, directory, source
        self._extra_addresses = {kind: sibling_address(address, f"{name}.jsonl") for kind, name in _EXTRA_FILES.items()}

    def check(self) -> None:
        if not self._directory.state.exists():
            for address in (self._address, *self._extra_addresses.values()):
                if StoredFile(address, missing_code="output_invalid").exists():
                    raise output_exists_error(address, self._source)
            check_writable(self._address)

    def finalize(self, files: dict[RowStatus, Path], on_message: OnMessage = ignore_message) -> list[str]:
        self._claim_address(self._address)
        with atomic_output(self._address) as file:
            self._format.write(files.get(RowStatus.OK), file)
        written = [masked(self._address)]
        for kind, address in self._extra_addresses.items():
            path = files.get(kind)
            if path is not None and path.exists() and path.stat().st_size:
                self._claim_address(address)
                with path.open("rb") as source, atomic_output(address) as file:
                    shutil.copyfileobj(source, file, _COPY_BYTES)
                written.append(masked(address))
            else:
                # From an earlier run, before rows were retried.
                failpoint("output.remove")
                if self._may_be_own(address):
                    StoredFile(address).remove()
        return written

    def _may_be_own(self, address: str) -> bool:
        return not is_local(address) or address in self._directory.created_files()

    def _claim_address(self, address: str) -> None:
        """Claim the address for this job. Raises BatchError `output_exists` if another program has created it."""
        if self._may_be_own(address):
            return
        if StoredFile(address).exists():
            raise BatchError(
                f"{masked(address)} was created by another program while the job ran; move it away and resume the job",
                "output_exists",
            )
        self._directory.record_created_file(address)

    def find_differences(self, files: dict[RowStatus, Path]) -> Iterator[str]:
        expected = read_answer_records(files.get(RowStatus.OK), self._task)
        stored = self._format.read(StoredFile(self._address, missing_code="output_failed"))
        try:
            for answer, there in zip_longest(expected, stored):
                if answer is None:
                    yield there[0]
                elif (
                    there is None
                    or there[0] != str(answer.id)
                    or not same_content(there[1], answer.content, self._task)
                ):
                    yield str(answer.id)
        except ValueError as error:
            raise BatchError(
                f"{masked(self._address)} is damaged ({error}); remove it and resume the job", "job_damaged"
            ) from error


def output_exists_error(address: str, source: str) -> BatchError:
    """Return the error for a file that exists where a new job would write."""
    if address == source:
        return BatchError(f"{masked(address)} is both input and output; choose another output", "output_exists")
    return BatchError(
        f"{masked(address)} exists and was not written by this job; choose another output or move the file away",
        "output_exists",
    )


class JsonLinesOutputFormat:
    """Copies the job's answers file byte for byte."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, answers: Path | None, file: IO[bytes]) -> None:
        if answers is not None:
            with answers.open("rb") as source:
                shutil.copyfileobj(source, file, _COPY_BYTES)

    def read(self, file: StoredFile) -> Iterator[tuple[str, Any]]:
        with file.reading() as reading:
            for line in reading.content:
                answer = parse_answer(line, self._task)
                yield str(answer.id), answer.content


class CsvOutputFormat:
    """Writes answers as CSV. A missing value is an empty field; values that are neither text nor number are JSON."""

    def __init__(self, keep: Sequence[str], separator: str, task: Task) -> None:
        self._task, fields = task, ANSWER_FIELDS[task]
        self._columns = [*fields, *(name for name in keep if name not in fields)]
        self._separator = separator

    def write(self, answers: Path | None, file: IO[bytes]) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        rows = csv.writer(text, delimiter=self._separator, lineterminator="\n")
        rows.writerow(self._columns)
        for answer in read_answer_records(answers, self._task):
            values = answer.as_dict()
            if self._task == "embed":
                values["embedding"] = vector_of(answer.content)
            rows.writerow([_csv_field(values.get(name)) for name in self._columns])
        text.flush()
        text.detach()  # the caller closes the file

    def read(self, file: StoredFile) -> Iterator[tuple[str, Any]]:
        csv.field_size_limit(2**31 - 1)
        with file.reading() as reading:
            text = io.TextIOWrapper(cast("Any", reading.content), encoding="utf-8", newline="")
            try:
                rows = csv.reader(text, delimiter=self._separator, strict=True)
                if next(rows, None) != self._columns:
                    raise ValueError("its header is another")
                for id_, content, *_ in rows:  # the answer itself as in its record
                    yield id_, orjson.loads(content) if self._task in ("embed", "rerank", "score") else content
            except csv.Error as error:
                raise ValueError(str(error)) from error
            finally:
                text.detach()


def _csv_field(value: Any) -> Any:
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
        return value
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
