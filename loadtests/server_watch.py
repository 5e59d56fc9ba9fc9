"""The server's own counters and gauges, read from its metrics page while a run is made."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable

from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.metrics_page import fetch

from loadtests.connection import settings_of
from loadtests.plan import Plan
from loadtests.run_directory import RunDirectory

_PERIOD = 1.0
_FETCH_SECONDS = 5.0
_RUNNING = ('request_type="active"', "nv_inference_pending_request_count")
"""What is above zero while the server still has requests: the engine's gauge, and Triton's of each model."""
_BUCKETS = "_bucket{"
"""Series of histograms' buckets: most of the page, and nothing that sums and counts don't have."""


class ServerWatch:
    """Appends samples to a run's `server.jsonl`: `before` it, once a second `during` it, and `after` it.

    A server without a metrics page has no samples; `absent` says why.
    """

    def __init__(self, plan: Plan, directory: RunDirectory) -> None:
        self._settings = settings_of(plan)
        self._file = directory.server.open("a", encoding="utf-8")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._start: Callable[[], float | None] = lambda: None
        self._samples: list[tuple[float, str, dict[str, float]]] = []
        self.absent = ""

    def before(self) -> None:
        """Look once; what is unreachable now is not asked again."""
        try:
            self._samples.append((time.monotonic(), "before", self._page()))
        except InflightError as error:
            self.absent = str(error)

    def watch(self, start: Callable[[], float | None]) -> None:
        """Look every second in a thread; `start` gives the run's start on the monotonic clock, once it is known."""
        self._start = start
        if self.absent:
            return
        self._thread = threading.Thread(target=self._watch, daemon=True, name="server watch")
        self._thread.start()

    def after(self, longest: float) -> None:
        """End watching, and look once more when the server has nothing left to do, or after so many seconds."""
        self._ended.set()
        if self._thread is not None:  # else there is no page, or the run never began
            self._thread.join()
            self._look_at_rest(longest)
        self._write()
        self._file.close()

    def _watch(self) -> None:
        while not self._ended.wait(_PERIOD):
            try:
                self._samples.append((time.monotonic(), "during", self._page()))
            except InflightError:
                continue  # a server that is too busy, or is being started again: a gap in the time line says it
            try:
                self._write()
            except OSError:
                return  # the disk is full: `after` finds it so too, and says it

    def _look_at_rest(self, longest: float) -> None:
        last = None
        until = time.monotonic() + longest
        while True:
            try:
                page = self._page()
            except InflightError:
                page = None
            over = time.monotonic() >= until
            if page is not None and (over or (page == last and not _busy(page))):
                self._samples.append((time.monotonic(), "after", page))
                return
            if over:
                return
            last = page
            time.sleep(_PERIOD / 2)

    def _page(self) -> dict[str, float]:
        text = fetch(self._settings.metrics_url, Deadline(_FETCH_SECONDS, "the metrics page"), self._settings)
        return series_of(text)

    def _write(self) -> None:
        """Samples from before the start wait until it is known."""
        start = self._start()
        if start is None:
            return
        samples, self._samples = self._samples, []
        for at, moment, values in samples:
            if moment == "before" and at > start:
                moment = "during"  # the page was slow, and the first requests may be counted already
            self._file.write(json.dumps({"t": round(at - start, 3), "moment": moment, "values": values}) + "\n")
        self._file.flush()


def series_of(page: str) -> dict[str, float]:
    """Each series of a metrics page by its name and labels, as they stand there; without buckets and what is no number.

    >>> series_of('# TYPE a counter\\na{model="x"} 3\\nb_bucket{le="1"} 2\\nc NaN\\n')
    {'a{model="x"}': 3.0}
    """
    found = {}
    for line in page.splitlines():
        name, _, number = line.rpartition(" ")
        if not name or line.startswith("#") or _BUCKETS in name:
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        if math.isfinite(value):
            found[name.strip()] = value
    return found


def _busy(page: dict[str, float]) -> bool:
    return any(value > 0 for name, value in page.items() if any(part in name for part in _RUNNING))
