"""Answers as lines of JSON, as the job has them, on a storage or compressed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from inflight.batch.destinations.answer import read_answer
from inflight.batch.files import StoredFile

_COPIED_AT_ONCE = 1 << 20


class Lines:
    """The same bytes as in the job's file of answers."""

    def write(self, answers: Path | None, file: IO[bytes]) -> None:
        if answers is not None:
            with answers.open("rb") as source:
                shutil.copyfileobj(source, file, _COPIED_AT_ONCE)

    def read(self, file: StoredFile) -> Iterator[tuple[str, str | None]]:
        with file.reading() as reading:
            for line in reading.inside:
                answer = read_answer(line)
                yield str(answer.id), answer.text
