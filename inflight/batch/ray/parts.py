"""Splits an input into parts of about equal size, each starting where a source can start to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import TypeAdapter, ValidationError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import Position
from inflight.batch.job.spec import InputPart, Job, OutputSpec
from inflight.batch.ray.shared_facts import SharedFacts
from inflight.batch.row_formats.factory import has_vector_column
from inflight.batch.sources.interface import RowSource
from inflight.common.atomic_files import make_directory

_PARTS_PER_WORKER = 4
"""Parts per worker, so that workers that finish early find more work."""
_MIN_ROWS, _MAX_ROWS = 32, 50_000
"""Rows per part: fewer would not fill an engine, and more could keep one worker busy for long at the end."""
_MAX_START_POINTS = 4096

_PARTS = TypeAdapter(tuple[InputPart, ...])


@dataclass(frozen=True)
class StartPoint:
    """A place where reading can start: the number of its row, and the position for `RowSource.read`."""

    number: int
    after: Position | None
    line: int


def split_input(source: RowSource, begin: StartPoint, limit: int | None, workers: int) -> tuple[InputPart, ...]:
    """Read the input once from there on and split it; without rows there are no parts. Uses little memory.

    `limit`: rows of the whole input. Raises BatchError.
    """
    marks, end = _start_points(source, begin, limit)
    rows = end - begin.number
    preferred = max(workers * _PARTS_PER_WORKER, math.ceil(rows / _MAX_ROWS))
    count = min(preferred, math.ceil(rows / _MIN_ROWS), len(marks))
    chosen = [marks[len(marks) * part // count] for part in range(count)]
    ends = [*(mark.number for mark in chosen[1:]), end]
    return tuple(
        InputPart(first=mark.number, rows=last - mark.number, after=mark.after, line=mark.line)
        for mark, last in zip(chosen, ends, strict=True)
    )


def _start_points(source: RowSource, begin: StartPoint, limit: int | None) -> tuple[list[StartPoint], int]:
    """Return at most _MARKS equally spaced places, starting with `begin`, and the number after the last row."""
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
        self._whole, self.path = whole, whole.path.resolve() / "parts"
        self.plan_file, self.shared = self.path / "plan.json", SharedFacts(self.path)

    def read(self) -> tuple[InputPart, ...] | None:
        """Return the plan; None if there is none yet. Raises BatchError `job_damaged`."""
        try:
            return _PARTS.validate_json(self.plan_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise BatchError(f"{self.plan_file} is not a plan: {reason}; start a new job", "job_damaged") from None

    def write(self, parts: Sequence[InputPart]) -> None:
        make_directory(self.path)
        self._whole.write(self.plan_file, _PARTS.dump_json(tuple(parts)).decode() + "\n")

    def job(self, whole: Job, index: int, part: InputPart) -> Job:
        """Return the job of a part. It writes JSON lines, whatever the whole job's output is."""
        return Job(
            input=whole.input.model_copy(update={"part": part, "limit": None}),
            output=OutputSpec(address=str(self.path / f"{index:05}.jsonl")),
            defaults=whole.defaults,
            encode=whole.encode,
            retrieval=whole.retrieval,
            refine=whole.refine,
            run_options=whole.run_options.model_copy(update={"runner": "local"}),
            compact_vectors=has_vector_column(whole),
        )
