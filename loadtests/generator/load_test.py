"""A load test that Locust runs in one process; `master.py` runs it in many."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import gevent
import grpc.experimental.gevent as grpc_gevent
from gevent.event import Event
from inflight_client import InflightError
from locust.env import Environment

from loadtests.errors import LoadError
from loadtests.generator.shard_runner import ShardRunner
from loadtests.plan import LoadPlan
from loadtests.run_directory import RunDirectory


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


logger = logging.getLogger(__name__)


class LoadTestSpec(NamedTuple):
    """What a test does, the files that its plan names, and where its results go (None: nowhere)."""

    plan: LoadPlan
    files: Mapping[str, bytes]
    results: ResultFiles | None


MakeSpec = Callable[[], LoadTestSpec]
"""Creates the spec again whenever a test starts. May raise LoadError or InflightError."""


class LoadTest:
    """The state of the current test; Locust starts the test."""

    def __init__(self, environment: Environment, make_spec: MakeSpec) -> None:
        self.environment = environment
        self.started_at: float | None = None
        """The run's start, on this machine's monotonic clock."""
        self.finished = Event()
        """Whether all processes have reported everything, or the run has failed."""
        self.failure: tuple[str, str] | None = None
        """A message and its error code."""
        self._make_spec = make_spec
        environment.events.test_start.add_listener(self._on_start)

    def start(self, spec: LoadTestSpec) -> None:
        """Start this test. Raises LoadError or InflightError if that is impossible."""
        raise NotImplementedError

    def add(self, records: list[str], samples: list[dict[str, Any]]) -> None:
        """Store lines of the current test."""
        try:
            if self._results is not None:
                self._results.add(records, samples)
        except OSError as error:
            self.fail(f"the run's files cannot be written: {error.strerror}", "disk_full")

    def fail(self, message: str, code: str) -> None:
        """Fail the run; the first reason counts."""
        if self.failure is None:
            self.failure = (message, code)
            logger.error("%s", message)
            self.environment.process_exit_code = 1
            options = self.environment.parsed_options
            if options is not None and options.headless:  # headless Locust command: nothing could start it again
                gevent.spawn(self.environment.runner.quit)
        self.finished.set()

    def _on_start(self, **_: Any) -> None:
        self.finished.clear()
        self.started_at = self.failure = None
        try:
            spec = self._make_spec()
            self._results = spec.results
            self.start(spec)
        except (LoadError, InflightError) as error:
            self.fail(str(error), error.code)


class LocalLoadTest(LoadTest):
    """A load test whose requests this process sends."""

    def __init__(self, environment: Environment, make_spec: MakeSpec, table: bool = False) -> None:
        super().__init__(environment, make_spec)
        self._runner = ShardRunner(environment, self._add_results, table)

    def start(self, spec: LoadTestSpec) -> None:
        self._runner.prepare(spec.plan, spec.files, 0, 1)
        self.started_at = self._runner.start()

    def _add_results(self, records: list[str], samples: list[dict[str, Any]], last: bool) -> None:
        self.add(records, samples)
        if last:
            self.finished.set()


_MOST_THREADS = 100_000


def init_grpc() -> None:
    """Let gRPC calls yield to other greenlets while they wait. Call this before the first channel is created.

    Each call waits for its next event in a native thread of gevent's pool, which has ten threads by default. With more
    streams than threads, some would receive their tokens only after another stream had received one: late by as much as
    the server's gaps between tokens, while no event loop was delayed. So the pool has no practical limit; threads are
    created when they are needed.
    """
    grpc_gevent.init_gevent()
    gevent.get_hub().threadpool.maxsize = _MOST_THREADS
