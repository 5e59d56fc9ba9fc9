"""The files of a run. Records are written as they come, so a run that is killed can still be reported."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadtests.errors import LoadError
from loadtests.json_values import object_in, objects_in
from loadtests.plan import Plan
from loadtests.plan_options import sentence_of
from loadtests.record import Record

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunDirectory:
    """Reads and writes a run's files.

    - `plan.json`: the plan, without secrets; `facts.json`: when and where it ran, against which versions.
    - `requests.jsonl`: one `Record` a line.
    - `server.jsonl`: the server's counters and gauges, once a second: `{"t": seconds, "moment": "before" | "during" |
      "after", "values": {series: value}}`, series as on the metrics page.
    - `generator.jsonl`: how each of the load's processes stood, once a second: `{"worker", "t", "cpu", "lag", "open",
      "sent", "outcomes", "exhausted"}`: processor cores in use, the worst delay of its event loop in seconds, open
      requests, requests sent, those that ended by outcome, whether it has no more sessions to begin. With
      `"lost": true` it is the master's word that this process is not heard of any more.
    - `generator.log`: what the load's processes said beside that; empty where all went well.
    - `report.json`, `report.html`, `requests.csv`, `timeline.csv`: what `report` makes of all that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path) -> RunDirectory:
        """A new one. Raises LoadError where something stands already or nothing can be written."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise LoadError(f"{path} exists; choose another --out, or remove it", "output_exists") from None
        except PermissionError as error:
            raise LoadError(
                f"{path} can't be made: {error.strerror}; check its permissions, or choose another --out",
                "output_unwritable",
            ) from None
        except OSError as error:
            raise LoadError(f"{path} can't be made: {error.strerror}", "load_failed") from None
        return cls(path)

    @classmethod
    @contextmanager
    def making(cls, path: Path) -> Iterator[RunDirectory]:
        """As `make`; where an error comes before the first request, nothing is left behind.

        Raises LoadError where the disk is full.
        """
        made = cls.make(path)
        try:
            with made.writing():
                yield made
        except BaseException:
            if not any(file.stat().st_size for file in path.rglob(made.requests.name)):
                shutil.rmtree(path, ignore_errors=True)
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raises LoadError for what the system says against writing here."""
        try:
            yield
        except OSError as error:
            code = "disk_full" if error.errno in _NO_ROOM else "load_failed"
            raise LoadError(f"the run in {self.path} can't go on: {error.strerror or error}", code) from error

    @property
    def requests(self) -> Path:
        return self.path / "requests.jsonl"

    @property
    def server(self) -> Path:
        return self.path / "server.jsonl"

    @property
    def generator(self) -> Path:
        return self.path / "generator.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "generator.log"

    def write_plan(self, plan: Plan) -> None:
        (self.path / "plan.json").write_text(plan.model_dump_json(indent=2) + "\n")

    def plan(self) -> Plan:
        """Raises LoadError where there is none, or it is damaged."""
        found = self._object("plan.json")
        try:
            return Plan.model_validate(found)
        except ValidationError as error:
            raise LoadError(f"{self.path / 'plan.json'} is no plan: {sentence_of(error)}", "run_damaged") from None

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        (self.path / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")

    def facts(self) -> dict[str, Any]:
        return self._object("facts.json")

    def records(self) -> list[Record]:
        """All whole lines, in the order of the file. Raises LoadError `run_damaged` for one that is no record."""
        found = []
        for number, values in objects_in(self.requests):
            try:
                found.append(Record.of(values))
            except (TypeError, KeyError, ValueError) as error:
                raise LoadError(f"{self.requests}, line {number}, is no record: {error}", "run_damaged") from None
        return found

    def server_samples(self) -> list[dict[str, Any]]:
        return [values for _, values in objects_in(self.server)]

    def generator_samples(self) -> list[dict[str, Any]]:
        return [values for _, values in objects_in(self.generator)]

    def _object(self, name: str) -> dict[str, Any]:
        try:
            return object_in(self.path / name)
        except FileNotFoundError:
            raise LoadError(f"{self.path} is no directory of a run: it has no {name}", "run_not_found") from None
