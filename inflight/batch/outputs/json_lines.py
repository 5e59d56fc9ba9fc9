"""Answers as JSON lines, in object storage or compressed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from inflight.batch.job.spec import Task
from inflight.batch.outputs.answer_record import parse_answer
from inflight.batch.storage.files import StoredFile

_COPY_BYTES = 1 << 20


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
