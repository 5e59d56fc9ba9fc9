"""What one process sends of a test, and how its records get to whoever keeps them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent.lock import Semaphore
from locust.env import Environment

from loadtests.ask import Workload
from loadtests.errors import LoadError
from loadtests.generator.entries import Entries
from loadtests.generator.self_watch import SelfWatch
from loadtests.generator.share import Share
from loadtests.plan import Plan
from loadtests.record import Record
from loadtests.workloads.make import make_workload

AHEAD = 1.0
"""Seconds from the word to begin to the run's start: all have heard it by then, and the server was looked at."""
_PERIOD = 1.0
"""How often what there is is handed over."""

HandOver = Callable[[list[str], list[dict[str, Any]], bool], None]
"""Takes lines of records, samples of how the process stands, and whether these are the last of the test."""


class Sending:
    """Prepares a test, begins it, and hands over what came of it, each record exactly once; then the next test.

    It hangs itself into an environment's events; users find it there as `environment.inflight`.
    """

    def __init__(self, environment: Environment, hand_over: HandOver, table: bool) -> None:
        """With `table`, Locust's own table is told of each request too."""
        self.share: Share | None = None
        """This process's part of the test; None where none was begun, or one could not be."""
        self._environment = environment
        self._hand_over = hand_over
        self._table = table
        self._index = 0
        self._entries: Entries | None = None
        self._records: list[str] = []
        self._samples: list[dict[str, Any]] = []
        self._running = False
        self._flushing = Semaphore()
        self._greenlets: list[gevent.Greenlet] = []
        environment.inflight = self
        environment.events.test_stopping.add_listener(self._on_stopping)
        environment.events.test_stop.add_listener(self._on_stop)

    def prepare(self, plan: Plan, files: Mapping[str, bytes], index: int, count: int) -> None:
        """Make the workload, and look whether the server is there. Raises LoadError or InflightError."""
        self.share = None
        self._records.clear()
        self._samples.clear()
        # In a native thread, for a long one would keep this process from giving signs of life.
        workload = gevent.get_hub().threadpool.apply(_workload, (plan, files))
        if isinstance(workload, LoadError):
            raise workload
        share = Share(plan, workload, index, count, self._tell)
        self._entries = Entries(self._environment, f"{plan.way} {share.deployment.model}") if self._table else None
        self._index = index
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # what stands by now is not looked through again in the middle of the run
        self.share = share

    def begin(self) -> float:
        """Begin soon; gives the run's start, on this machine's monotonic clock."""
        share = self.share
        assert share is not None
        start = share.begin(AHEAD).start
        watch = SelfWatch(share, self._index, self._samples.append)
        self._watch = watch
        self._running = True
        work = [watch.run, lambda: self._finish(share)]
        if share.plan.arrivals.kind != "users":
            work.append(share.follow_schedule)
        self._greenlets = [gevent.spawn(one) for one in work]
        gevent.spawn(self._flush_often)
        return start

    def _tell(self, record: Record) -> None:
        self._records.append(record.line())
        if self._entries is not None:
            self._entries.add(record)

    def _flush_often(self) -> None:
        began = time.monotonic()
        for turn in range(1, 1 << 62):
            gevent.sleep(max(0.0, began + turn * _PERIOD - time.monotonic()))
            if not self._running:
                return
            self._flush()

    def _finish(self, share: Share) -> None:
        share.finish()
        self._end()

    def _on_stopping(self, **_: Any) -> None:
        """Locust is about to end its users: nothing new is sent, and what is on its way may end in its time."""
        if self._running and self.share is not None:
            self.share.stop()

    def _on_stop(self, **_: Any) -> None:
        """Locust ends the test, or the process: its users are gone."""
        self._end()

    def _end(self) -> None:
        """Tell the rest, once."""
        if not self._running:
            return
        self._running = False
        greenlets, self._greenlets = self._greenlets, []
        gevent.killall([greenlet for greenlet in greenlets if greenlet is not gevent.getcurrent()])
        self._watch.tell()
        self._flush(last=True)
        if self.share is not None:
            self.share.close()

    def _flush(self, last: bool = False) -> None:
        with self._flushing:  # what is on its way to the master is not the last
            records, samples = list(self._records), list(self._samples)
            self._records.clear()
            self._samples.clear()
            self._hand_over(records, samples, last)


def _workload(plan: Plan, files: Mapping[str, bytes]) -> Workload | LoadError:
    """An error is returned, for gevent's pool writes a traceback of whatever is raised in it."""
    try:
        return make_workload(plan.workload, files, plan.seed)
    except LoadError as error:
        return error
