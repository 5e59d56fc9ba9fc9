"""The files of a run. Records are written as they arrive, so a killed run can still be reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inflight.common.atomic_files import DISK_FULL_ERRORS
from loadtests.errors import LoadError
from loadtests.json_files import read_object, read_objects
from loadtests.plan import LoadPlan
from loadtests.plan_options import describe_error


class RunDirectory:
    """Reads and writes a run's files.

    - `plan.json`: the plan, without secrets; `metadata.json`: when and where it ran, with which versions.
    - `requests.jsonl`: one `RequestRecord` per line.
    - `server.jsonl`: the server's counters and gauges, once a second: `{"t": seconds, "moment": "before" |
      "during" | "after", "values": {series: value}}`, series as on the metrics page.
    - `generator.jsonl`: the state of each generator process, once a second: `{"worker", "t", "cpu", "lag", "open",
    "sent", "outcomes", "exhausted"}`: processor cores in use, the longest delay of its event loop in seconds, open
    requests, sent requests, ended ones by outcome, whether it has no more sessions to start. With `"lost": true` the
    master reports that it lost this process.
    - `generator.log`: other output of the generator's processes; usually empty.
    - `report.json`, `report.html`, `requests.csv`, `timeline.csv`: written from these by `report`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests, self.server = path / "requests.jsonl", path / "server.jsonl"
        self.generator = path / "generator.jsonl"
        self.log = path / "generator.log"

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Create a new one. Raises LoadError if the path exists or cannot be written."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise LoadError(f"{path} exists; choose another --out or remove it", "output_exists") from None
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
    def creating(cls, path: Path) -> Iterator[RunDirectory]:
        """As `create`, but remove the directory if an error occurs before the first request.

        Raises LoadError if the disk is full.
        """
        made = cls.create(path)
        try:
            with made.map_write_errors():
                yield made
        except BaseException:
            if not any(file.stat().st_size for file in path.rglob(made.requests.name)):
                shutil.rmtree(path, ignore_errors=True)
            raise

    @contextmanager
    def map_write_errors(self) -> Iterator[None]:
        """Raises LoadError for an OSError while writing."""
        try:
            yield
        except OSError as error:
            code = "disk_full" if error.errno in DISK_FULL_ERRORS else "load_failed"
            raise LoadError(f"the run in {self.path} can't go on: {error.strerror or error}", code) from error

    def write_plan(self, plan: LoadPlan) -> None:
        (self.path / "plan.json").write_text(plan.model_dump_json(indent=2) + "\n")

    def plan(self) -> LoadPlan:
        """Read the plan. Raises LoadError if it is missing or damaged."""
        values = self._object("plan.json")
        try:
            return LoadPlan.model_validate(values)
        except ValidationError as error:
            raise LoadError(
                f"{self.path / 'plan.json'} is not a plan: {describe_error(error)}", "run_damaged"
            ) from None

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        (self.path / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")

    def metadata(self) -> dict[str, Any]:
        return self._object("metadata.json")

    def server_samples(self) -> list[dict[str, Any]]:
        return [values for _, values in read_objects(self.server)]

    def generator_samples(self) -> list[dict[str, Any]]:
        return [values for _, values in read_objects(self.generator)]

    def _object(self, name: str) -> dict[str, Any]:
        try:
            return read_object(self.path / name)
        except FileNotFoundError:
            raise LoadError(f"{self.path} is not the directory of a run: it has no {name}", "run_not_found") from None
