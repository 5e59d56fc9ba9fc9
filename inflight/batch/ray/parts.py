"""An input cut into parts of about equal size, each of which begins where a source can begin to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import Position
from inflight.batch.job.spec import InputPart, Job, OutputSpec
from inflight.batch.sources.interface import RowSource
from inflight.common.atomic_files import make_directory

_PARTS_PER_WORKER = 4
"""Parts for each worker, so that those who are done early find more to do."""
_MIN_ROWS, _MAX_ROWS = 32, 50_000
"""Rows of a part: fewer would not fill an engine, and more would be long with one worker at the end."""
_MAX_START_POINTS = 4096

_PARTS = TypeAdapter(tuple[InputPart, ...])


@dataclass(frozen=True)
class StartPoint:
    """A place where reading can begin: the number of the row there, and what `Source.read` is given."""

    number: int
    after: Position | None
    line: int


def split_input(source: RowSource, begin: StartPoint, limit: int | None, workers: int) -> tuple[InputPart, ...]:
    """Read the input once from there on, and cut it; without rows there are no parts. Takes little memory.

    `limit`: rows of the whole input. Raises BatchError.
    """
    marks, end = _start_points(source, begin, limit)
    rows = end - begin.number
    wanted = max(workers * _PARTS_PER_WORKER, math.ceil(rows / _MAX_ROWS))
    count = min(wanted, math.ceil(rows / _MIN_ROWS), len(marks))
    chosen = [marks[len(marks) * part // count] for part in range(count)]
    ends = [*(mark.number for mark in chosen[1:]), end]
    return tuple(
        InputPart(first=mark.number, rows=last - mark.number, after=mark.after, line=mark.line)
        for mark, last in zip(chosen, ends, strict=True)
    )


def _start_points(source: RowSource, begin: StartPoint, limit: int | None) -> tuple[list[StartPoint], int]:
    """Places at equal distances, _MARKS at most, the first where it begins; and the number behind the last row."""
    places: list[StartPoint] = []
    place, step = begin, 1
    left = None if limit is None else max(0, limit - begin.number)
    for record in islice(source.read(begin.after, begin.line), left):
        if (place.number - begin.number) % step == 0:
            places.append(place)
            if len(places) > _MAX_START_POINTS:
                places, step = places[::2], step * 2
        place = StartPoint(place.number + 1, record.position, record.line)
    return places, place.number


class PartPlan:
    """The parts of a job, in its directory's `parts/`: `plan.json`, and a job for each."""

    def __init__(self, whole: JobDirectory) -> None:
        self.path = whole.path.resolve() / "parts"
        self._whole = whole

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def stop_file(self) -> Path:
        """The file by which the head tells all workers to stop."""
        return self.path / "stop"

    def read(self) -> tuple[InputPart, ...] | None:
        """The plan; None where there is none yet. Raises BatchError `job_damaged`."""
        try:
            return _PARTS.validate_json(self.plan_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise BatchError(f"{self.plan_file} is no plan: {reason}; begin a new job", "job_damaged") from None

    def write(self, parts: Sequence[InputPart]) -> None:
        make_directory(self.path)
        self._whole.write(self.plan_file, _PARTS.dump_json(tuple(parts)).decode() + "\n")

    def job(self, whole: Job, index: int, part: InputPart) -> Job:
        """What is bound to a part's state. It writes lines of JSON, whatever the whole job's output is."""
        running = whole.run_options
        here = {"part": part, "limit": None}
        return Job(
            input=whole.input.model_copy(update=here),
            output=OutputSpec(address=str(self.path / f"{index:05}.jsonl")),
            defaults=whole.defaults,
            run_options=running.model_copy(update={"runner": "local"}),
        )
