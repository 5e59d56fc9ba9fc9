"""Writes the results of the load generator's processes to the run's files as they arrive."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Protocol

from loadtests.run_directory import RunDirectory


class ResultSink(Protocol):
    """Receives records and samples of the processes. May raise OSError."""

    def add(self, records: list[str], samples: list[dict[str, Any]]) -> None: ...


class ResultFiles:
    """Appends to a run directory's `requests.jsonl` and `generator.jsonl`; added lines survive a kill."""

    def __init__(self, directory: RunDirectory) -> None:
        self._requests = directory.requests.open("a", encoding="utf-8")
        self._generator = directory.generator.open("a", encoding="utf-8")

    def add(self, records: list[str], samples: list[dict[str, Any]]) -> None:
        for file, lines in ((self._requests, records), (self._generator, map(json.dumps, samples))):
            file.writelines(f"{line}\n" for line in lines)
            file.flush()

    def close(self) -> None:
        for file in (self._requests, self._generator):
            with suppress(OSError):  # `add` has raised it already
                file.close()


class NullResultSink:
    """A sink that discards everything, when only Locust's own table is wanted."""

    def add(self, records: list[str], samples: list[dict[str, Any]]) -> None:
        pass
