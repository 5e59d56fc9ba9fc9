"""Runs one process's shard of a test and reports its records."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent.lock import Semaphore
from locust.env import Environment

from loadtests.errors import LoadError
from loadtests.generator.session_schedule import SessionShard
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.workloads.factory import make_workload
from loadtests.workloads.interface import Workload

_TICK_SECONDS = 0.02
"""Interval between measurements of the event loop's delay."""
_SAMPLE_INTERVAL = 1.0


class GeneratorMonitor:
    """Reports the state of a process once a second (see `RunDirectory`)."""

    def __init__(self, shard: SessionShard, worker: int, sample: Callable[[dict[str, Any]], None]) -> None:
        self._shard = shard
        self._worker = worker
        self._on_sample = sample
        self._wall, self._processor = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Run forever; to be spawned."""
        worst = 0.0
        last_sample = time.monotonic()
        while True:
            before = time.monotonic()
            gevent.sleep(_TICK_SECONDS)
            now = time.monotonic()
            worst = max(worst, now - before - _TICK_SECONDS)
            if now - last_sample >= _SAMPLE_INTERVAL:
                self.sample(worst)
                worst, last_sample = 0.0, now

    def sample(self, worst: float = 0.0) -> None:
        """Report the current state; `worst` is the longest delay since the last report."""
        wall, processor = time.monotonic(), time.process_time()
        cores = (processor - self._processor) / max(wall - self._wall, 1e-9)
        self._wall, self._processor = wall, processor
        self._on_sample(
            {
                "worker": self._worker,
                "t": round(self._shard.clock.now(), 3),
                "cpu": round(cores, 4),
                "lag": round(worst, 6),
                "open": self._shard.in_flight,
                "sent": self._shard.sent,
                "outcomes": dict(self._shard.outcomes),
                "exhausted": self._shard.exhausted,
            }
        )


def lost_sample(worker: int, t: float) -> dict[str, Any]:
    """Return the sample that a master writes for a lost process (see `RunDirectory`)."""
    return {"worker": worker, "t": round(t, 3), "cpu": 0.0, "lag": 0.0, "open": 0, "sent": 0, "lost": True}


_UNCOUNTED = (RequestOutcome.CANCELLED, RequestOutcome.UNFINISHED)
"""Outcomes that are neither a success nor a failure of the server."""


class LocustStats:
    """Reports each record to Locust.

    The request itself, from its due time to its end, is fired as Locust's event, so that all listeners receive it, and
    `Aggregated` counts requests. Its parts are added directly to the table, since one request has hundreds of gaps
    between tokens. All times are in milliseconds; `Size` is in tokens, or
    in texts of an encoder.
    """

    def __init__(self, environment: Environment, name: str) -> None:
        self._environment = environment
        self._name = name

    def add(self, record: RequestRecord) -> None:
        if record.outcome in _UNCOUNTED:
            return
        seconds = record.ended - record.due
        failed = record.outcome is not RequestOutcome.COMPLETED
        self._environment.events.request.fire(
            request_type="E2E",
            name=self._name,
            response_time=seconds * 1e3,
            response_length=record.output_tokens or record.texts,
            exception=FailedRequestError(record.code, record.message) if failed else None,
            context={},
        )
        if failed:
            return
        if record.chunks:
            first, last = record.chunks[0], record.chunks[-1]
            self._log("TTFT", (first - record.due) * 1e3)
            for before, after in zip(record.chunks, record.chunks[1:], strict=False):
                self._log("ITL", (after - before) * 1e3)
            if record.output_tokens is not None and record.output_tokens > 1:
                self._log("TPOT", (last - first) / (record.output_tokens - 1) * 1e3)
        if record.output_tokens and seconds > 0:
            self._log("tokens/s", record.output_tokens / seconds)
        if record.texts and seconds > 0:
            self._log("texts/s", record.texts / seconds)

    def _log(self, kind: str, value: float) -> None:
        entry: Any = self._environment.stats.get(self._name, kind)
        entry.log(value, 0)


class FailedRequestError(Exception):
    """A failure listed by its error code, so that failures of a kind share one row."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"RequestError({self.code!r})"


START_DELAY = 1.0
"""Seconds between the begin message and the run's start: long enough for all to receive it, and to read the metrics."""
_FLUSH_INTERVAL = 1.0
"""Seconds between two reports."""

OnResults = Callable[[list[str], list[dict[str, Any]], bool], None]
"""Receives records, samples of the process, and whether these are the last of the test."""


class ShardRunner:
    """Prepares a test, starts it and reports its results, each record exactly once; then the next test.

    It registers for an environment's events; users find it there as `environment.inflight`.
    """

    def __init__(self, environment: Environment, on_results: OnResults, table: bool) -> None:
        """With `table`, also report each request to Locust's own table."""
        self.shard: SessionShard | None = None
        """This process's shard of the test; None if none was started, or one could not be."""
        self._environment = environment
        self._on_results = on_results
        self._table = table
        self._index = 0
        self._stats: LocustStats | None = None
        self._records: list[str] = []
        self._samples: list[dict[str, Any]] = []
        self._running = False
        self._flushing = Semaphore()
        self._greenlets: list[gevent.Greenlet] = []
        environment.inflight = self
        environment.events.test_stopping.add_listener(self._on_stopping)
        environment.events.test_stop.add_listener(self._on_stop)

    def prepare(self, plan: LoadPlan, files: Mapping[str, bytes], index: int, count: int) -> None:
        """Create the workload, and check that the server is reachable. Raises LoadError or InflightError."""
        self.shard = None
        self._records.clear()
        self._samples.clear()
        # In a native thread, because a long computation would block this process's heartbeats.
        workload = gevent.get_hub().threadpool.apply(_workload, (plan, files))
        if isinstance(workload, LoadError):
            raise workload
        share = SessionShard(plan, workload, index, count, self._on_record)
        self._stats = (
            LocustStats(self._environment, f"{plan.task if plan.encodes else plan.mode} {share.model.name}")
            if self._table
            else None
        )
        self._index = index
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # do not scan existing objects again during the run
        self.shard = share

    def start(self) -> float:
        """Start soon; return the run's start on this machine's monotonic clock."""
        share = self.shard
        assert share is not None
        start = share.start(START_DELAY).start
        watch = GeneratorMonitor(share, self._index, self._samples.append)
        self._monitor = watch
        self._running = True
        work = [watch.run, lambda: self._finish(share)]
        if share.plan.arrivals.kind != "users":
            work.append(share.run_schedule)
        self._greenlets = [gevent.spawn(task) for task in work]
        gevent.spawn(self._flush_often)
        return start

    def _on_record(self, record: RequestRecord) -> None:
        self._records.append(record.to_json())
        if self._stats is not None:
            self._stats.add(record)

    def _flush_often(self) -> None:
        began = time.monotonic()
        for turn in range(1, 1 << 62):
            gevent.sleep(max(0.0, began + turn * _FLUSH_INTERVAL - time.monotonic()))
            if not self._running:
                return
            self._flush()

    def _finish(self, shard: SessionShard) -> None:
        shard.finish()
        self._finalize()

    def _on_stopping(self, **_: Any) -> None:
        """Locust is about to end its users: send nothing new, and let open requests finish in their time."""
        if self._running and self.shard is not None:
            self.shard.stop()

    def _on_stop(self, **_: Any) -> None:
        """Locust ends the test or the process: its users are gone."""
        self._finalize()

    def _finalize(self) -> None:
        """Report the remaining results, once."""
        if not self._running:
            return
        self._running = False
        greenlets, self._greenlets = self._greenlets, []
        gevent.killall([greenlet for greenlet in greenlets if greenlet is not gevent.getcurrent()])
        self._monitor.sample()
        self._flush(last=True)
        if self.shard is not None:
            self.shard.close()

    def _flush(self, last: bool = False) -> None:
        with self._flushing:  # a report that is still being sent is not the last
            records, samples = list(self._records), list(self._samples)
            self._records.clear()
            self._samples.clear()
            self._on_results(records, samples, last)


def _workload(plan: LoadPlan, files: Mapping[str, bytes]) -> Workload | LoadError:
    """Return the workload or the error; gevent's pool prints a traceback of any exception raised in it."""
    try:
        return make_workload(plan.workload, files, plan.seed)
    except LoadError as error:
        return error
