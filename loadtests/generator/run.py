"""Runs one plan: alone, or as the master of workers on this and other machines."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import MasterRunner
from zmq import ZMQError

from inflight.common.child_process import python_module
from loadtests.arrivals.profile import Profile
from loadtests.errors import LoadError
from loadtests.generator.load_test import LoadTest, LoadTestSpec, LocalLoadTest, ResultFiles
from loadtests.generator.master import MasterLoadTest
from loadtests.generator.users import user_class_for
from loadtests.plan import LoadPlan
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory

_RESULT_TIMEOUT = 15.0
"""Seconds after its end in which a run may still report its last records."""
_QUIT_TIMEOUT = 5.0
_POLL_SECONDS = 0.1


def run_plan(directory: RunDirectory, plan: LoadPlan, files: Mapping[str, bytes], workers: WorkerSpec) -> None:
    """Run the plan, and print when it begins. Raises LoadError or InflightError."""
    kind = user_class_for(plan)
    environment = Environment(user_classes=[kind], host=plan.server)
    results = ResultFiles(directory)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        spec = LoadTestSpec(plan, files, results)
        if workers.is_single:
            environment.create_local_runner()
            test: LoadTest = LocalLoadTest(environment, lambda: spec)
        else:
            runner = _create_master(environment, workers)
            test = MasterLoadTest(environment, lambda: spec)
            _start_workers(runner, workers, processes)
        stopped = Event()
        gevent.signal_handler(signal.SIGTERM, _stop, environment, stopped)
        users = workers.total
        if plan.arrivals.kind == "users":
            profile = Profile.parse(plan.arrivals.profile)
            users = max([1, *(profile.users(moment) for moment in profile.changes if moment < plan.end)])
        environment.runner.start(users, spawn_rate=users)
        if _wait_for_start(test, stopped):
            _wait_for_end(test, plan, processes)
    finally:
        if environment.runner is not None:
            environment.runner.quit()
        results.close()
        _stop_processes(processes)
    if test.failure is not None:
        raise LoadError(*test.failure)


def _stop(environment: Environment, stopped: Event) -> None:
    """Stop the run: its users end and report their records."""
    stopped.set()
    environment.runner.stop()


def _stop_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    with gevent.Timeout(_QUIT_TIMEOUT, False):
        for process in processes:
            process.wait()
    for process in processes:
        process.kill()


def _create_master(environment: Environment, workers: WorkerSpec) -> MasterRunner:
    host, _, port = workers.bind.rpartition(":")
    try:
        return environment.create_master_runner(host, int(port))
    except (RPCError, ZMQError) as error:
        raise LoadError(f"the master cannot listen at {workers.bind}: {error}", "load_failed") from None


def _start_workers(runner: MasterRunner, workers: WorkerSpec, processes: list[subprocess.Popen[bytes]]) -> None:
    """Start this machine's workers, and wait until all have connected."""
    host, bound = workers.bind.rpartition(":")[0], runner.server.port
    local = "127.0.0.1" if host in ("", "*", "0.0.0.0", "::") else host
    for _ in range(workers.workers):
        command = python_module("loadtests.generator.main", "--worker-of", f"{local}:{bound}")
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    with gevent.Timeout(workers.join_timeout, False):
        while len(runner.clients.ready) < workers.total and all(process.poll() is None for process in processes):
            gevent.sleep(_POLL_SECONDS)
    if any(process.poll() is not None for process in processes):
        raise LoadError("a worker of this machine ended before the run began", "load_failed")
    if (there := len(runner.clients.ready)) < workers.total:
        raise LoadError(
            f"only {there} of {workers.total} workers connected within {workers.join_timeout:g} seconds; the master "
            f"listens at {host}:{bound}",
            "load_failed",
        )


def _wait_for_start(test: LoadTest, stopped: Event) -> bool:
    """Print when the run begins; return whether it does."""
    while test.started_at is None and not test.finished.is_set():
        if stopped.wait(0.01):
            return False
    if test.started_at is None or test.failure is not None:
        return False
    print(json.dumps({"begun": test.started_at}), flush=True)
    return True


def _wait_for_end(test: LoadTest, plan: LoadPlan, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have reported; a lost worker shows by its missing records (see `Validity`)."""
    longest = plan.end + plan.drain_seconds + _RESULT_TIMEOUT
    with gevent.Timeout(longest, False):
        while not test.finished.wait(_POLL_SECONDS):
            if processes and all(process.poll() is not None for process in processes):
                return
