"""Writes the files of a test that Locust's own command runs, so that `inflight load report` can read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from loadtests.connection import connect, without_secrets
from loadtests.generator.result_files import ResultFiles
from loadtests.plan import LoadPlan
from loadtests.run.metadata import collect_metadata
from loadtests.run.server_metrics import ServerMetricsRecorder
from loadtests.run_directory import RunDirectory

_IDLE_TIMEOUT = 5.0


class LocustResults:
    """Records the server's metrics before, during and after a test, beside the test's records.

    Raises LoadError or InflightError if the directory cannot be created or the server is unreachable.
    """

    def __init__(self, path: Path, plan: LoadPlan, start: Callable[[], float | None]) -> None:
        self._plan = plan
        with connect(plan) as client:
            self._metadata = collect_metadata(plan, client)
        self._directory = RunDirectory.create(path)
        self._directory.write_plan(without_secrets(plan)[0])
        self.files = ResultFiles(self._directory)
        self._recorder = ServerMetricsRecorder(plan, self._directory)
        self._recorder.sample_before()
        self._recorder.start(start)

    def set_duration(self, seconds: float) -> None:
        """Set the measured part to the time until Locust ended the test."""
        measured = min(self._plan.seconds, seconds - self._plan.warmup)
        if measured > 0:
            self._plan = self._plan.model_copy(update={"seconds": measured})
            self._directory.write_plan(without_secrets(self._plan)[0])

    def close(self) -> None:
        """Close the files; all records have been written."""
        self._recorder.stop(_IDLE_TIMEOUT)
        self.files.close()
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"interrupted": False, "server_metrics_error": self._recorder.unavailable_reason, "ended": ended}
        self._directory.write_metadata({**self._metadata, **facts})
