"""An input cut into parts of about equal size, each of which begins where a source can begin to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from inflight.batch.errors import BatchError
from inflight.batch.job import Job, OutputSpec, Part
from inflight.batch.job_directory import JobDirectory
from inflight.batch.row import Position
from inflight.batch.sources.source import Source
from inflight.batch.state.line_file import make_directory

_EACH = 4
"""Parts for each worker, so that those who are done early find more to do."""
_FEWEST, _MOST = 32, 50_000
"""Rows of a part: fewer would not fill an engine, and more would be long with one worker at the end."""
_MARKS = 4096

_PARTS = TypeAdapter(tuple[Part, ...])


@dataclass(frozen=True)
class Mark:
    """A place where reading can begin: the number of the row there, and what `Source.read` is given."""

    number: int
    after: Position | None
    line: int


def cut(source: Source, begin: Mark, limit: int | None, workers: int) -> tuple[Part, ...]:
    """Read the input once from there on, and cut it; without rows there are no parts. Takes little memory.

    `limit`: rows of the whole input. Raises BatchError.
    """
    marks, end = _marks(source, begin, limit)
    rows = end - begin.number
    wanted = max(workers * _EACH, math.ceil(rows / _MOST))
    count = min(wanted, math.ceil(rows / _FEWEST), len(marks))
    chosen = [marks[len(marks) * part // count] for part in range(count)]
    ends = [*(mark.number for mark in chosen[1:]), end]
    return tuple(
        Part(first=mark.number, rows=last - mark.number, after=mark.after, line=mark.line)
        for mark, last in zip(chosen, ends, strict=True)
    )


def _marks(source: Source, begin: Mark, limit: int | None) -> tuple[list[Mark], int]:
    """Places at equal distances, _MARKS at most, the first where it begins; and the number behind the last row."""
    places: list[Mark] = []
    place, step = begin, 1
    left = None if limit is None else max(0, limit - begin.number)
    for record in islice(source.read(begin.after, begin.line), left):
        if (place.number - begin.number) % step == 0:
            places.append(place)
            if len(places) > _MARKS:
                places, step = places[::2], step * 2
        place = Mark(place.number + 1, record.position, record.line)
    return places, place.number


class Parts:
    """The parts of a job, in its directory's `parts/`: `plan.json`, and a job for each."""

    def __init__(self, whole: JobDirectory) -> None:
        self.path = whole.path.resolve() / "parts"
        self._whole = whole

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def order(self) -> Path:
        """The file by which the head tells all workers to stop."""
        return self.path / "stop"

    def read(self) -> tuple[Part, ...] | None:
        """The plan; None where there is none yet. Raises BatchError `job_damaged`."""
        try:
            return _PARTS.validate_json(self.plan.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise BatchError(f"{self.plan} is no plan: {reason}; begin a new job", "job_damaged") from None

    def write(self, parts: Sequence[Part]) -> None:
        make_directory(self.path)
        self._whole.write(self.plan, _PARTS.dump_json(tuple(parts)).decode() + "\n")

    def job(self, whole: Job, index: int, part: Part) -> Job:
        """What is bound to a part's state. It writes lines of JSON, whatever the whole job's output is."""
        running = whole.running
        here = {"part": part, "limit": None}
        return Job(
            input=whole.input.model_copy(update=here),
            output=OutputSpec(address=str(self.path / f"{index:05}.jsonl")),
            defaults=whole.defaults,
            running=running.model_copy(update={"runner": "local"}),
        )
