"""A load test of many processes: the master, which plans and keeps, and the workers, which send."""

from __future__ import annotations

import logging
import time
from typing import Any

import gevent
from inflight_client import InflightError
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner, WorkerNode

from loadtests.errors import LoadError
from loadtests.generator.load_test import Ask, Asked, LoadTest
from loadtests.generator.self_watch import lost_sample
from loadtests.generator.sending import AHEAD, Sending
from loadtests.plan import Plan

_PLAN, _READY, _BEGIN, _STOP = "inflight_plan", "inflight_ready", "inflight_begin", "inflight_stop"
_RESULTS, _FAILED = "inflight_results", "inflight_failed"
_LOOK_SECONDS = 1.0
_LOST_SECONDS = 6.0
"""A worker that Locust has missed for so long (after three seconds without a sign) will tell nothing more."""

logger = logging.getLogger(__name__)


class Master(LoadTest):
    """Sends the plan to all workers, with the files it names; when all have made their workload of it they are told to
    begin, and they send back records, each exactly once. Each message has its test's number: a late one counts in none.
    """

    def __init__(self, environment: Environment, ask: Ask) -> None:
        super().__init__(environment, ask)
        self._test = 0
        self._telling: dict[int, str] = {}
        """The workers that have not told all yet, by their index."""
        self._preparing: set[int] = set()
        self._silent: dict[int, float] = {}
        for kind, listener in ((_READY, self._on_ready), (_RESULTS, self._on_results), (_FAILED, self._on_failed)):
            environment.runner.register_message(kind, listener)
        environment.events.test_stopping.add_listener(self._on_stopping)

    def start(self, asked: Asked) -> None:
        runner: MasterRunner = self.environment.runner
        self._test += 1
        # In the order in which Locust deals out users, so that user 0 is worker 0's, user 1 worker 1's and so on.
        workers = sorted(runner.clients.ready, key=_dealt)
        self._telling = {index: worker.id for index, worker in enumerate(workers)}
        self._preparing = set(self._telling)
        self._silent = {}
        shared = {"plan": asked.plan.model_dump_json(), "files": dict(asked.files), "count": len(workers)}
        for index, worker in self._telling.items():
            runner.send_message(_PLAN, {**shared, "test": self._test, "index": index}, client_id=worker)
        gevent.spawn(self._look_for_workers, runner, self._test)

    def _on_ready(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] != self._test:
            return
        self._preparing.discard(msg.data["index"])
        if not self._preparing and self.begun is None:
            self.begun = time.monotonic() + AHEAD
            for worker in self._telling.values():
                self.environment.runner.send_message(_BEGIN, {"test": self._test}, client_id=worker)

    def _on_results(self, msg: Any, **_: Any) -> None:
        data = msg.data
        if data["test"] != self._test:
            return
        self.add(data["records"], data["samples"])
        if data["last"]:
            self._has_told(data["index"])

    def _on_failed(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._test:
            self.fail(msg.data["message"], msg.data["code"])

    def _on_stopping(self, **_: Any) -> None:
        """Locust tells workers so only after the test's end where it ends with it; what is open may end before."""
        for worker in self._telling.values():
            self.environment.runner.send_message(_STOP, {"test": self._test}, client_id=worker)

    def _has_told(self, index: int) -> None:
        self._telling.pop(index, None)
        if not self._telling:
            self.ended.set()

    def _look_for_workers(self, runner: MasterRunner, test: int) -> None:
        """While they have not told all; one that is lost keeps nobody waiting."""
        while self._telling and not self.ended.is_set() and test == self._test:
            gevent.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            nodes = {index: runner.clients.get(worker) for index, worker in self._telling.items()}
            gone = [index for index, node in nodes.items() if node is None or node.state == STATE_MISSING]
            self._silent = {index: self._silent.get(index, now) for index in gone}
            for index, since in self._silent.items():
                if now - since >= _LOST_SECONDS:
                    self._lose(index, since)

    def _lose(self, index: int, since: float) -> None:
        if self.begun is None:
            self.fail(f"process {index} of the load generator was lost before the run began", "load_failed")
            return
        logger.warning("process %d of the load generator was lost", index)
        self.add([], [lost_sample(index, since - self.begun)])
        self._has_told(index)


def _dealt(worker: WorkerNode) -> tuple[int, str]:
    return getattr(worker, "_index_within_host", 0), worker.id


class Worker:
    """Sends what its master says, and tells it what came."""

    def __init__(self, environment: Environment, table: bool = False) -> None:
        self._runner = environment.runner
        self._sending = Sending(environment, self._hand_over, table)
        self._test = 0
        self._index = 0
        self._runner.register_message(_PLAN, self._on_plan)
        self._runner.register_message(_BEGIN, self._on_begin)
        self._runner.register_message(_STOP, self._on_stop)

    def _on_plan(self, msg: Any, **_: Any) -> None:
        data = msg.data
        self._test, self._index = data["test"], data["index"]
        try:
            plan = Plan.model_validate_json(data["plan"])
            self._sending.prepare(plan, data["files"], data["index"], data["count"])
        except (LoadError, InflightError) as error:
            self._say(_FAILED, message=str(error), code=error.code)
        else:
            self._say(_READY)

    def _on_begin(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._test and self._sending.share is not None:
            self._sending.begin()

    def _on_stop(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._test and self._sending.share is not None:
            self._sending.share.stop()

    def _hand_over(self, records: list[str], samples: list[dict[str, Any]], last: bool) -> None:
        self._say(_RESULTS, records=records, samples=samples, last=last)

    def _say(self, kind: str, **data: Any) -> None:
        self._runner.send_message(kind, {"test": self._test, "index": self._index, **data})
