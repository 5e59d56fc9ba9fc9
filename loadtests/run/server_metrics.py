"""Records the server's counters and gauges from its metrics page during a run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from inflight_client.errors import InflightError
from inflight_client.metrics import Metrics

from loadtests.analysis.server.counters import series_key
from loadtests.connection import connect
from loadtests.plan import LoadPlan
from loadtests.run_directory import RunDirectory

_SAMPLE_INTERVAL = 1.0
_FETCH_TIMEOUT = 5.0
_IDLE_INTERVAL = 0.25
_IDLE_BEFORE_TIMEOUT = 2.0
_RUNNING = ('request_type="active"', "nv_inference_pending_request_count", "inflight_gateway_answers_in_flight")
"""Gauges above zero while the server has requests: the engine's, Triton's for each model, and a gateway's."""


class ServerMetricsRecorder:
    """Appends samples to a run's `server.jsonl`: `before` it, once a second `during` it, and `after` it.

    A server without a metrics page has no samples; `absent` says why.
    """

    def __init__(self, plan: LoadPlan, directory: RunDirectory) -> None:
        self._client = connect(plan)
        self._file = directory.server.open("a", encoding="utf-8")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._run_start: Callable[[], float | None] = lambda: None
        self._samples: list[tuple[float, str, dict[str, float]]] = []
        self.unavailable_reason = ""

    def sample_before(self) -> None:
        """Take a sample, and another one of an idle server if it becomes idle soon.

        Requests that others abandoned a moment ago are not to be counted as the run's. If the page is unreachable now,
        it is not read again.
        """
        try:
            page = self._fetch()
        except InflightError as error:
            self.unavailable_reason = str(error)
            return
        self._samples.append((time.monotonic(), "before", page))
        if (idle := self._page_when_idle(_IDLE_BEFORE_TIMEOUT, page)) is not None:
            self._samples.append((time.monotonic(), "before", idle))

    def start(self, start: Callable[[], float | None]) -> None:
        """Take a sample every second in a thread; `start` returns the run's start on the monotonic clock once it is
        known."""
        self._run_start = start
        if self.unavailable_reason:
            return
        self._thread = threading.Thread(target=self._run, daemon=True, name="server watch")
        self._thread.start()

    def stop(self, idle_timeout: float) -> None:
        """Stop the thread, and take a last sample when the server is idle or `idle_timeout` has passed."""
        self._ended.set()
        if self._thread is not None:  # otherwise there is no page, or the run never began
            self._thread.join()
            if (page := self._page_when_idle(idle_timeout)) is not None:
                self._samples.append((time.monotonic(), "after", page))
        self._write()
        self._file.close()
        self._client.close()

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_INTERVAL):
            try:
                self._samples.append((time.monotonic(), "during", self._fetch()))
            except InflightError:
                continue  # the server is busy or restarting; the timeline shows a gap
            try:
                self._write()
            except OSError:
                return  # the disk is full: the last sample fails too and reports it

    def _page_when_idle(self, idle_timeout: float, last: dict[str, float] | None = None) -> dict[str, float] | None:
        """Read the page until the server is idle and the page is equal to the `last` one, or until `idle_timeout` has
        passed. Return None if it can't be read then."""
        until = time.monotonic() + idle_timeout
        while True:
            time.sleep(_IDLE_INTERVAL)
            try:
                page = self._fetch()
            except InflightError:
                page = None
            over = time.monotonic() >= until
            if over or (page is not None and page == last and not _is_busy(page)):
                return page
            last = page

    def _fetch(self) -> dict[str, float]:
        page = samples_by_series(self._client.metrics(_FETCH_TIMEOUT))
        # A gateway counts the requests for its page, so it would never be the same twice.
        return {name: value for name, value in page.items() if 'route="/metrics"' not in name}

    def _write(self) -> None:
        """Write the samples; those from before the start wait until it is known."""
        start = self._run_start()
        if start is None:
            return
        samples, self._samples = self._samples, []
        before = [at for at, moment, _ in samples if moment == "before"]
        # The page of an idle server, unless it became idle only after the start.
        chosen = max((at for at in before if at <= start), default=max(before, default=start))
        for at, moment, values in samples:
            if moment == "before":
                if at != chosen:
                    continue
                if at > start:
                    moment = "during"  # the page was slow, so it may already count the first requests
            self._file.write(json.dumps({"t": round(at - start, 3), "moment": moment, "values": values}) + "\n")
        self._file.flush()


def samples_by_series(page: Metrics) -> dict[str, float]:
    """The value of each series of a page by its name and labels, without histograms' buckets.

    >>> samples_by_series(Metrics.parse('# TYPE a counter\\na{model="x"} 3\\nb NaN\\n'))
    {'a{model="x"}': 3.0}
    """
    return {series_key(name, labels): value for name, labels, value in page.series() if not name.endswith("_bucket")}


def _is_busy(page: dict[str, float]) -> bool:
    return any(value > 0 for name, value in page.items() if any(part in name for part in _RUNNING))
