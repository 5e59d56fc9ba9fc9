"""An output that is a file, made whole of the job's lines at the end; errors and dead letters lie beside it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO, Protocol

from inflight.batch.addresses import is_local
from inflight.batch.destinations.answer import read_answers
from inflight.batch.destinations.whole import beside, probe, whole
from inflight.batch.errors import BatchError
from inflight.batch.failpoints import reach
from inflight.batch.files import StoredFile
from inflight.batch.job_directory import JobDirectory
from inflight.batch.row import Kind
from inflight.batch.secret_address import masked

_COPIED_AT_ONCE = 1 << 20
_BESIDE = {Kind.ERROR: "errors", Kind.DEAD: "dead"}


class Shape(Protocol):
    """How answers lie in a file."""

    def write(self, answers: Path | None, file: IO[bytes]) -> None:
        """All of them, of a job's file of lines; None where there are none."""

    def read(self, file: StoredFile) -> Iterator[tuple[str, str | None]]:
        """Id and text of each answer again. Raises BatchError, or ValueError for what can't be one."""


class FileDestination:
    """`source`: the address of the job's input.

    What this job has made on a disk is noted in its directory beforehand, so that another job, whose files for errors
    and dead letters have the same names, keeps its own. A storage's job may go on elsewhere, and has no such notes.
    """

    takes_rows = False

    def __init__(self, address: str, shape: Shape, directory: JobDirectory, source: str) -> None:
        self._address, self._shape, self._directory, self._source = address, shape, directory, source
        self._beside = {kind: beside(address, f"{name}.jsonl") for kind, name in _BESIDE.items()}

    def check(self) -> None:
        if not self._directory.state.exists():
            for address in (self._address, *self._beside.values()):
                if StoredFile(address, absent="output_invalid").exists():
                    raise taken(address, self._source)
            probe(self._address)

    def one_key(self, id_: str) -> str:
        return id_

    def put(self, lines: Iterable[bytes]) -> None:
        raise NotImplementedError("a file is made at the end")

    def finish(self, files: dict[Kind, Path]) -> list[str]:
        self._claim(self._address)
        with whole(self._address) as file:
            self._shape.write(files.get(Kind.OK), file)
        written = [masked(self._address)]
        for kind, address in self._beside.items():
            path = files.get(kind)
            if path is not None and path.exists() and path.stat().st_size:
                self._claim(address)
                copy(path, address)
                written.append(masked(address))
            else:
                # Of an earlier finish, before rows were tried again.
                reach("output.remove")
                if self._may_be_own(address):
                    StoredFile(address).remove()
        return written

    def _may_be_own(self, address: str) -> bool:
        return not is_local(address) or address in self._directory.made()

    def _claim(self, address: str) -> None:
        """It is this job's from now on. Raises BatchError `output_exists` where somebody has made it meanwhile."""
        if self._may_be_own(address):
            return
        if StoredFile(address).exists():
            raise BatchError(
                f"{masked(address)} was made by somebody else while the job ran; move it away, and resume the job",
                "output_exists",
            )
        self._directory.note_made(address)

    def notes(self) -> list[str]:
        return []

    def differences(self, files: dict[Kind, Path]) -> Iterator[str]:
        expected = read_answers(files.get(Kind.OK))
        found = self._shape.read(StoredFile(self._address, absent="output_failed"))
        try:
            for answer, there in zip_longest(expected, found):
                if answer is None:
                    yield there[0]
                elif there != (str(answer.id), answer.text):
                    yield str(answer.id)
        except ValueError as error:
            raise BatchError(
                f"{masked(self._address)} is damaged ({error}); remove it, and resume the job", "job_damaged"
            ) from error

    def close(self) -> None:
        pass


def taken(address: str, source: str) -> BatchError:
    """What to say of a file that lies where a job that has not begun would write."""
    if address == source:
        return BatchError(
            f"{masked(address)} is the input itself, where the job would write; choose another output", "output_exists"
        )
    return BatchError(
        f"{masked(address)} exists, and this job has not written it; choose another output, or move it away",
        "output_exists",
    )


def copy(path: Path, address: str) -> None:
    """Put a local file there, whole."""
    with path.open("rb") as source, whole(address) as file:
        shutil.copyfileobj(source, file, _COPIED_AT_ONCE)
