"""A load test of many processes: a master that plans and stores, and workers that send."""

from __future__ import annotations

import logging
import time
from typing import Any

import gevent
from inflight_client import InflightError
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner, WorkerNode

from loadtests.errors import LoadError
from loadtests.generator.load_test import LoadTest, LoadTestSpec, MakeSpec
from loadtests.generator.shard_runner import START_DELAY, ShardRunner, lost_sample
from loadtests.plan import LoadPlan

_HELLO, _PLAN, _READY = "inflight_hello", "inflight_plan", "inflight_ready"
_BEGIN, _STOP = "inflight_begin", "inflight_stop"
_RESULTS, _FAILED = "inflight_results", "inflight_failed"
_POLL_SECONDS = 1.0
_HELLO_TIMEOUT = 30.0
"""How long connected workers may take until they handle messages."""
_LOST_TIMEOUT = 6.0
"""Seconds after which a worker that Locust misses (after three seconds without a heartbeat) counts as lost."""

logger = logging.getLogger(__name__)


class MasterLoadTest(LoadTest):
    """Sends the plan and its files to all workers, once they handle messages.

    When all have created their workload, the master tells them to begin; they send back records, each exactly once.
    Each message contains its test's number; late ones are ignored.
    """

    def __init__(self, environment: Environment, make_spec: MakeSpec) -> None:
        super().__init__(environment, make_spec)
        self._test = 0
        self._handling: set[str] = set()
        """The workers that handle messages; Locust counts them as ready earlier, and drops messages until then."""
        self._reporting: dict[int, str] = {}
        """The workers that have not reported everything yet, by index."""
        self._preparing: set[int] = set()
        self._missing_since: dict[int, float] = {}
        for kind, listener in (
            (_HELLO, self._on_hello),
            (_READY, self._on_ready),
            (_RESULTS, self._on_results),
            (_FAILED, self._on_failed),
        ):
            environment.runner.register_message(kind, listener)
        environment.events.test_stopping.add_listener(self._on_stopping)

    def start(self, spec: LoadTestSpec) -> None:
        runner: MasterRunner = self.environment.runner
        self._test += 1
        self._wait_for_workers(runner)
        # In the order in which Locust assigns users, so that user 0 is worker 0's, user 1 worker 1's and so on.
        workers = sorted(runner.clients.ready, key=_locust_order)
        self._reporting = {index: worker.id for index, worker in enumerate(workers)}
        self._preparing = set(self._reporting)
        self._missing_since = {}
        shared = {"plan": spec.plan.model_dump_json(), "files": dict(spec.files), "count": len(workers)}
        for index, worker in self._reporting.items():
            runner.send_message(_PLAN, {**shared, "test": self._test, "index": index}, client_id=worker)
        gevent.spawn(self._watch_workers, runner, self._test)

    def _wait_for_workers(self, runner: MasterRunner) -> None:
        with gevent.Timeout(_HELLO_TIMEOUT, False):
            while silent := {worker.id for worker in runner.clients.ready} - self._handling:
                gevent.sleep(0.02)
        if silent:
            raise LoadError(
                f"{len(silent)} workers do not answer, such as {min(silent)}; start them again", "load_failed"
            )

    def _on_hello(self, msg: Any, **_: Any) -> None:
        self._handling.add(msg.node_id)

    def _on_ready(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] != self._test:
            return
        self._preparing.discard(msg.data["index"])
        if not self._preparing and self.started_at is None:
            self.started_at = time.monotonic() + START_DELAY
            for worker in self._reporting.values():
                self.environment.runner.send_message(_BEGIN, {"test": self._test}, client_id=worker)

    def _on_results(self, msg: Any, **_: Any) -> None:
        data = msg.data
        if data["test"] != self._test:
            return
        self.add(data["records"], data["samples"])
        if data["last"]:
            self._mark_reported(data["index"])

    def _on_failed(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._test:
            self.fail(msg.data["message"], msg.data["code"])

    def _on_stopping(self, **_: Any) -> None:
        """Stop the workers early. Locust does so only after the test's end, but open requests may end before it."""
        for worker in self._reporting.values():
            self.environment.runner.send_message(_STOP, {"test": self._test}, client_id=worker)

    def _mark_reported(self, index: int) -> None:
        self._reporting.pop(index, None)
        if not self._reporting:
            self.finished.set()

    def _watch_workers(self, runner: MasterRunner, test: int) -> None:
        """Watch the workers until all have reported; do not wait for one that is lost."""
        while self._reporting and not self.finished.is_set() and test == self._test:
            gevent.sleep(_POLL_SECONDS)
            now = time.monotonic()
            nodes = {index: runner.clients.get(worker) for index, worker in self._reporting.items()}
            lost = [index for index, node in nodes.items() if node is None or node.state == STATE_MISSING]
            self._missing_since = {index: self._missing_since.get(index, now) for index in lost}
            for index, since in self._missing_since.items():
                if now - since >= _LOST_TIMEOUT:
                    self._mark_lost(index, since)

    def _mark_lost(self, index: int, since: float) -> None:
        if self.started_at is None:
            self.fail(f"process {index} of the load generator was lost before the run began", "load_failed")
            return
        logger.warning("process %d of the load generator was lost", index)
        self.add([], [lost_sample(index, since - self.started_at)])
        self._mark_reported(index)


def _locust_order(worker: WorkerNode) -> tuple[int, str]:
    return getattr(worker, "_index_within_host", 0), worker.id


class WorkerLoadTest:
    """A worker's part of a load test: sends what its master says and reports the results."""

    def __init__(self, environment: Environment, table: bool = False) -> None:
        self._runner = environment.runner
        self._shard_runner = ShardRunner(environment, self._send_results, table)
        self._test = 0
        self._index = 0
        self._runner.register_message(_PLAN, self._on_plan)
        self._runner.register_message(_BEGIN, self._on_begin)
        self._runner.register_message(_STOP, self._on_stop)
        gevent.spawn(self._greet)

    def _greet(self) -> None:
        """Announce regularly that messages are handled, since the master may start to listen later."""
        while True:
            self._send(_HELLO)
            gevent.sleep(_POLL_SECONDS)

    def _on_plan(self, msg: Any, **_: Any) -> None:
        data = msg.data
        self._test, self._index = data["test"], data["index"]
        try:
            plan = LoadPlan.model_validate_json(data["plan"])
            self._shard_runner.prepare(plan, data["files"], data["index"], data["count"])
        except (LoadError, InflightError) as error:
            self._send(_FAILED, message=str(error), code=error.code)
        else:
            self._send(_READY)

    def _on_begin(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._test and self._shard_runner.shard is not None:
            self._shard_runner.start()

    def _on_stop(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._test and self._shard_runner.shard is not None:
            self._shard_runner.shard.stop()

    def _send_results(self, records: list[str], samples: list[dict[str, Any]], last: bool) -> None:
        self._send(_RESULTS, records=records, samples=samples, last=last)

    def _send(self, kind: str, **data: Any) -> None:
        self._runner.send_message(kind, {"test": self._test, "index": self._index, **data})
