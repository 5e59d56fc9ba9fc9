"""A load test as Locust runs it: in one process, or in a master that plans and workers that send."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent.event import Event
from gevent.lock import Semaphore
from inflight_client import InflightError
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from loadtests.ask import Workload
from loadtests.errors import LoadError
from loadtests.generator.entries import Entries
from loadtests.generator.result_files import Results
from loadtests.generator.self_watch import SelfWatch, lost_sample
from loadtests.generator.share import Share
from loadtests.plan import Plan
from loadtests.record import Record
from loadtests.workloads.make import make_workload

_PLAN, _READY, _BEGIN = "inflight_plan", "inflight_ready", "inflight_begin"
_RESULTS, _FAILED = "inflight_results", "inflight_failed"
_AHEAD = 0.5
"""Seconds from the word to begin to the run's start, so that all workers have heard it."""
_PERIOD = 1.0
"""How often workers send what they have, and how often they are looked for."""
_LOST_SECONDS = 6.0
"""A worker that Locust has missed for so long (after three seconds without a sign) will tell nothing more."""

Planned = Callable[[], tuple[Plan, Mapping[str, bytes]]]
"""Gives a plan, with the files that it names."""

logger = logging.getLogger(__name__)


class LoadTest:
    """Hangs itself into an environment's events; users find it there as `environment.inflight`.

    Where the runner is the master's, workers are sent the plan, with the files it names; when all have made their
    workload of it they are told to begin, and they send back records, each exactly once. Otherwise this process sends
    the requests itself.
    """

    def __init__(self, environment: Environment, results: Results, plan: Planned | None = None) -> None:
        """With `plan`, what to do when the test starts; a worker has none, for it is told by its master."""
        self.environment = environment
        self._results = results
        self._plan = plan
        self.ended = Event()
        """Whether all processes have told all that they had, or the run has failed."""
        self.failure: tuple[str, str] | None = None
        """A sentence and its code."""
        self.share: Share | None = None
        """This process's part of the run; None in a master, and where it could not begin."""
        self.begun: float | None = None
        """The run's start, on this machine's monotonic clock."""
        self._records: list[str] = []
        self._samples: list[dict[str, Any]] = []
        self._running = False
        self._flushing = Semaphore()
        self._greenlets: list[gevent.Greenlet] = []
        self._telling: dict[int, str] = {}
        """Of a master: the workers that have not told all yet, by their index."""
        self._preparing: set[int] = set()
        self._silent: dict[int, float] = {}
        environment.inflight = self
        environment.events.test_start.add_listener(self._on_start)
        environment.events.test_stop.add_listener(self._on_stop)
        if isinstance(environment.runner, MasterRunner):
            environment.runner.register_message(_READY, self._on_ready)
            environment.runner.register_message(_RESULTS, self._on_results)
            environment.runner.register_message(_FAILED, self._on_failed)
        elif isinstance(environment.runner, WorkerRunner):
            environment.runner.register_message(_PLAN, self._on_plan)
            environment.runner.register_message(_BEGIN, self._on_begin)

    def _on_start(self, **_: Any) -> None:
        runner = self.environment.runner
        if self._plan is None:
            return  # the master's message was there first
        self.ended.clear()
        self.begun = self.failure = self.share = None
        try:
            plan, files = self._plan()
            if isinstance(runner, MasterRunner):
                self._send_plan(runner, plan, files)
            else:
                self._prepare(plan, files, 0, 1)
                self._begin()
        except (LoadError, InflightError) as error:
            self._fail(str(error), error.code)

    def _send_plan(self, runner: MasterRunner, plan: Plan, files: Mapping[str, bytes]) -> None:
        self._telling = dict(enumerate(worker.id for worker in runner.clients.ready))
        self._preparing = set(self._telling)
        self._silent = {}
        for index, worker in self._telling.items():
            data = {"plan": plan.model_dump_json(), "files": dict(files), "index": index, "count": len(self._telling)}
            runner.send_message(_PLAN, data, client_id=worker)
        gevent.spawn(self._look_for_workers, runner)

    def _on_plan(self, msg: Any, **_: Any) -> None:
        data = msg.data
        try:
            self._prepare(Plan.model_validate_json(data["plan"]), data["files"], data["index"], data["count"])
        except (LoadError, InflightError) as error:
            self.environment.runner.send_message(_FAILED, {"message": str(error), "code": error.code})
            return
        self.environment.runner.send_message(_READY, {"index": data["index"]})

    def _on_ready(self, msg: Any, **_: Any) -> None:
        self._preparing.discard(msg.data["index"])
        if not self._preparing and self.begun is None:
            self.begun = time.monotonic() + _AHEAD
            for worker in self._telling.values():
                self.environment.runner.send_message(_BEGIN, client_id=worker)

    def _on_begin(self, **_: Any) -> None:
        if self.share is not None:
            self._begin()

    def _prepare(self, plan: Plan, files: Mapping[str, bytes], index: int, count: int) -> None:
        # In a native thread, for a long one would keep this process from giving signs of life.
        workload = gevent.get_hub().threadpool.apply(_workload, (plan, files))
        if isinstance(workload, LoadError):
            raise workload
        self.share = Share(plan, workload, index, count, self._tell)
        self.index = index

    def _begin(self) -> None:
        share = self.share
        assert share is not None
        self.begun = share.begin(_AHEAD).start
        self._entries = Entries(self.environment, f"{share.plan.way} {share.deployment.model}")
        self._watch = SelfWatch(share, self.index, self._samples.append)
        self._running = True
        self._greenlets = [gevent.spawn(self._watch.run), gevent.spawn(self._finish, share)]
        gevent.spawn(self._flush_often)

    def _look_for_workers(self, runner: MasterRunner) -> None:
        """While they have not told all; one that is lost keeps nobody waiting."""
        while self._telling and not self.ended.is_set():
            gevent.sleep(_PERIOD)
            now = time.monotonic()
            nodes = {index: runner.clients.get(worker) for index, worker in self._telling.items()}
            gone = [index for index, node in nodes.items() if node is None or node.state == STATE_MISSING]
            self._silent = {index: self._silent.get(index, now) for index in gone}
            for index, since in self._silent.items():
                if now - since >= _LOST_SECONDS:
                    self._lose(index, since)

    def _lose(self, index: int, since: float) -> None:
        if self.begun is None:
            self._fail(f"process {index} of the load generator was lost before the run began", "load_failed")
            return
        logger.warning("process %d of the load generator was lost", index)
        self._add([], [lost_sample(index, since - self.begun)])
        self._has_told(index)

    def _has_told(self, index: int) -> None:
        self._telling.pop(index, None)
        if not self._telling:
            self.ended.set()

    def _tell(self, record: Record) -> None:
        self._records.append(record.line())
        self._entries.add(record)

    def _flush_often(self) -> None:
        while self._running:
            self._flush()
            gevent.sleep(_PERIOD)

    def _finish(self, share: Share) -> None:
        share.finish()
        self._end()

    def _on_stop(self, **_: Any) -> None:
        """Locust ends the test, or the process: its users are gone."""
        if not isinstance(self.environment.runner, MasterRunner):
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
        """Hand over what there is; to the master, or to the files."""
        with self._flushing:  # what is on its way to the master is not the last
            records, samples = list(self._records), list(self._samples)
            self._records.clear()
            self._samples.clear()
            runner = self.environment.runner
            if isinstance(runner, WorkerRunner):
                data = {"records": records, "samples": samples, "index": self.index, "last": last}
                runner.send_message(_RESULTS, data)
                return
            self._add(records, samples)
            if last:
                self.ended.set()

    def _add(self, records: list[str], samples: list[dict[str, Any]]) -> None:
        try:
            self._results.add(records, samples)
        except OSError as error:
            self._fail(f"the run's files can't be written: {error.strerror}", "disk_full")

    def _on_results(self, msg: Any, **_: Any) -> None:
        data = msg.data
        self._add(data["records"], data["samples"])
        if data["last"]:
            self._has_told(data["index"])

    def _on_failed(self, msg: Any, **_: Any) -> None:
        self._fail(msg.data["message"], msg.data["code"])

    def _fail(self, message: str, code: str) -> None:
        """The run can't go on; the first reason counts."""
        if self.failure is None:
            self.failure = (message, code)
            logger.error("%s", message)
            self.environment.process_exit_code = 1
            options = self.environment.parsed_options
            if options is not None and options.headless:  # under Locust's own command, with nobody to start it anew
                gevent.spawn(self.environment.runner.quit)
        self.ended.set()


def _workload(plan: Plan, files: Mapping[str, bytes]) -> Workload | LoadError:
    """An error is returned, for gevent's pool writes a traceback of whatever is raised in it."""
    try:
        return make_workload(plan.workload, files, plan.seed)
    except LoadError as error:
        return error
