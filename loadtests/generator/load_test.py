"""A load test as Locust runs it in one process; `master.py` has it for many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gevent
from gevent.event import Event
from inflight_client import InflightError
from locust.env import Environment

from loadtests.errors import LoadError
from loadtests.generator.result_files import ResultSink
from loadtests.generator.shard_runner import ShardRunner
from loadtests.plan import LoadPlan

logger = logging.getLogger(__name__)


class LoadTestSpec(NamedTuple):
    """What a test is to do, the files that its plan names, and where its lines go."""

    plan: LoadPlan
    files: Mapping[str, bytes]
    results: ResultSink


MakeSpec = Callable[[], LoadTestSpec]
"""Says it anew when a test starts. May raise LoadError or InflightError."""


class LoadTest:
    """What whoever asks for tests must know of the present one; it starts when Locust starts it."""

    def __init__(self, environment: Environment, make_spec: MakeSpec) -> None:
        self.environment = environment
        self.started_at: float | None = None
        """The run's start, on this machine's monotonic clock."""
        self.finished = Event()
        """Whether all processes have told all that they had, or the run has failed."""
        self.failure: tuple[str, str] | None = None
        """A sentence and its code."""
        self._make_spec = make_spec
        environment.events.test_start.add_listener(self._on_start)

    def start(self, spec: LoadTestSpec) -> None:
        """Make this test. Raises LoadError or InflightError where it can't be."""
        raise NotImplementedError

    def add(self, records: list[str], samples: list[dict[str, Any]]) -> None:
        """Keep lines of the present test."""
        try:
            self._results.add(records, samples)
        except OSError as error:
            self.fail(f"the run's files can't be written: {error.strerror}", "disk_full")

    def fail(self, message: str, code: str) -> None:
        """The run can't go on; the first reason counts."""
        if self.failure is None:
            self.failure = (message, code)
            logger.error("%s", message)
            self.environment.process_exit_code = 1
            options = self.environment.parsed_options
            if options is not None and options.headless:  # under Locust's own command, with nobody to start it anew
                gevent.spawn(self.environment.runner.quit)
        self.finished.set()

    def _on_start(self, **_: Any) -> None:
        self.finished.clear()
        self.started_at = self.failure = None
        try:
            asked = self._make_spec()
            self._results = asked.results
            self.start(asked)
        except (LoadError, InflightError) as error:
            self.fail(str(error), error.code)


class LocalLoadTest(LoadTest):
    """This process sends it all."""

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
