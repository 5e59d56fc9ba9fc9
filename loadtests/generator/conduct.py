"""Makes the run of one plan: alone, or as the master of workers here and elsewhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import MasterRunner
from zmq import ZMQError

from loadtests.arrivals.profile import Profile
from loadtests.errors import LoadError
from loadtests.generator.load_test import Asked, LoadTest, LoneTest
from loadtests.generator.master import Master
from loadtests.generator.result_files import ResultFiles
from loadtests.generator.users import user_class_of
from loadtests.plan import Plan
from loadtests.run_directory import RunDirectory
from loadtests.team import Team

_SLACK_SECONDS = 15.0
"""How much later than its end a run may tell its last records."""
_QUIT_SECONDS = 5.0
_LOOK_SECONDS = 0.1


def conduct(directory: RunDirectory, plan: Plan, files: Mapping[str, bytes], team: Team) -> None:
    """Carry it out, and say on standard output when it begins. Raises LoadError or InflightError."""
    kind = user_class_of(plan)
    environment = Environment(user_classes=[kind], host=plan.address)
    results = ResultFiles(directory)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        if team.alone:
            environment.create_local_runner()
        else:
            _gather(environment, team, processes)
        asked = Asked(plan, files, results)
        test = (LoneTest if team.alone else Master)(environment, lambda: asked)
        stopped = Event()
        gevent.signal_handler(signal.SIGTERM, _stop, environment, stopped)
        users = _most_users(plan) if plan.arrivals.kind == "users" else team.size
        environment.runner.start(users, spawn_rate=users)
        if _await_begin(test, stopped):
            _await_end(test, plan, processes)
    finally:
        if environment.runner is not None:
            environment.runner.quit()
        results.close()
        _end(processes)
    if test.failure is not None:
        raise LoadError(*test.failure)


def _stop(environment: Environment, stopped: Event) -> None:
    """Somebody wants the run to end: users end, and tell what they have."""
    stopped.set()
    environment.runner.stop()


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    with gevent.Timeout(_QUIT_SECONDS, False):
        for process in processes:
            process.wait()
    for process in processes:
        process.kill()


def _most_users(plan: Plan) -> int:
    profile = Profile.parse(plan.arrivals.profile)
    return max([1, *(profile.users(moment) for moment in profile.changes if moment < plan.end)])


def _gather(environment: Environment, team: Team, processes: list[subprocess.Popen[bytes]]) -> None:
    """Become the master, start this machine's workers, and wait until all are there."""
    host, _, port = team.bind.rpartition(":")
    try:
        runner: MasterRunner = environment.create_master_runner(host, int(port))
    except (RPCError, ZMQError) as error:
        raise LoadError(f"workers can't find the master at {team.bind}: {error}", "load_failed") from None
    bound = runner.server.port
    for _ in range(team.workers):
        command = [sys.executable, "-P", "-m", "loadtests.generator.main", "--worker-of", f"{_reached(host)}:{bound}"]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    with gevent.Timeout(team.join_seconds, False):
        while len(runner.clients.ready) < team.size and all(process.poll() is None for process in processes):
            gevent.sleep(_LOOK_SECONDS)
    if any(process.poll() is not None for process in processes):
        raise LoadError("a worker of this machine ended before the run began", "load_failed")
    if (there := len(runner.clients.ready)) < team.size:
        raise LoadError(
            f"of {team.size} workers only {there} came within {team.join_seconds:g} seconds; they find the master at "
            f"{host}:{bound}",
            "load_failed",
        )


def _reached(host: str) -> str:
    """Where this machine's own workers find a master that is bound there."""
    return "127.0.0.1" if host in ("", "*", "0.0.0.0", "::") else host


def _await_begin(test: LoadTest, stopped: Event) -> bool:
    """Say when it begins, and whether it does."""
    while test.begun is None and not test.ended.is_set():
        if stopped.wait(0.01):
            return False
    if test.begun is None or test.failure is not None:
        return False
    print(json.dumps({"begun": test.begun}), flush=True)
    return True


def _await_end(test: LoadTest, plan: Plan, processes: list[subprocess.Popen[bytes]]) -> None:
    """Until all have told all; a worker that is lost is told by what it does not tell (see `Grade`)."""
    longest = plan.end + plan.grace + _SLACK_SECONDS
    with gevent.Timeout(longest, False):
        while not test.ended.wait(_LOOK_SECONDS):
            if processes and all(process.poll() is not None for process in processes):
                return
