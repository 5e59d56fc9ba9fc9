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
from loadtests.generator.result_files import Results
from loadtests.generator.sending import Sending
from loadtests.plan import Plan

logger = logging.getLogger(__name__)


class Asked(NamedTuple):
    """What a test is to do, the files that its plan names, and where its lines go."""

    plan: Plan
    files: Mapping[str, bytes]
    results: Results


Ask = Callable[[], Asked]
"""Says it anew when a test starts. May raise LoadError or InflightError."""


class LoadTest:
    """What whoever asks for tests must know of the present one; it starts when Locust starts it."""

    def __init__(self, environment: Environment, ask: Ask) -> None:
        self.environment = environment
        self.begun: float | None = None
        """The run's start, on this machine's monotonic clock."""
        self.ended = Event()
        """Whether all processes have told all that they had, or the run has failed."""
        self.failure: tuple[str, str] | None = None
        """A sentence and its code."""
        self._ask = ask
        environment.events.test_start.add_listener(self._on_start)

    def start(self, asked: Asked) -> None:
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
        self.ended.set()

    def _on_start(self, **_: Any) -> None:
        self.ended.clear()
        self.begun = self.failure = None
        try:
            asked = self._ask()
            self._results = asked.results
            self.start(asked)
        except (LoadError, InflightError) as error:
            self.fail(str(error), error.code)


class LoneTest(LoadTest):
    """This process sends it all."""

    def __init__(self, environment: Environment, ask: Ask, table: bool = False) -> None:
        super().__init__(environment, ask)
        self._sending = Sending(environment, self._take, table)

    def start(self, asked: Asked) -> None:
        self._sending.prepare(asked.plan, asked.files, 0, 1)
        self.begun = self._sending.begin()

    def _take(self, records: list[str], samples: list[dict[str, Any]], last: bool) -> None:
        self.add(records, samples)
        if last:
            self.ended.set()
