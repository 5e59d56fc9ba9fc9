"""The files of a test that Locust's own command makes, so that it can be reported as a run is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from loadtests.connection import connect, without_secrets
from loadtests.facts import facts_before
from loadtests.generator.result_files import ResultFiles
from loadtests.plan import Plan
from loadtests.run_directory import RunDirectory
from loadtests.server_watch import ServerWatch

_REST_SECONDS = 5.0


class KeptTest:
    """Looks at the server before, during and after a test, and keeps that beside the test's records.

    Raises LoadError or InflightError where the directory can't be made, or the server is not there.
    """

    def __init__(self, place: Path, plan: Plan, start: Callable[[], float | None]) -> None:
        self._plan = plan
        with connect(plan) as client:
            self._facts = facts_before(plan, client)
        self._directory = RunDirectory.make(place)
        self._directory.write_plan(without_secrets(plan)[0])
        self.files = ResultFiles(self._directory)
        self._watch = ServerWatch(plan, self._directory)
        self._watch.before()
        self._watch.watch(start)

    def sent_for(self, seconds: float) -> None:
        """Locust says when a test ends: the measured part is what there was until then."""
        measured = min(self._plan.seconds, seconds - self._plan.warmup)
        if measured > 0:
            self._plan = self._plan.model_copy(update={"seconds": measured})
            self._directory.write_plan(without_secrets(self._plan)[0])

    def close(self) -> None:
        """All records are there."""
        self._watch.after(_REST_SECONDS)
        self.files.close()
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"interrupted": False, "no_server_metrics": self._watch.absent, "ended": ended}
        self._directory.write_facts({**self._facts, **facts})
