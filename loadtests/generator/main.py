"""`python -m loadtests.generator.main RUN_DIRECTORY`: runs the plan of a run directory under Locust.

It prints JSON objects on standard output, one per line: when the run begins (`begun`, on the monotonic clock), or why
it could not (`message`, `code`). The results go to the run's files.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path

import gevent
from locust.env import Environment  # first, because it patches the process for gevent

# isort: split
from inflight_client import InflightError
from locust.exception import RPCError

from loadtests.connection import with_secrets
from loadtests.errors import LoadError
from loadtests.generator.load_test import init_grpc
from loadtests.generator.master import WorkerLoadTest
from loadtests.generator.run import run_plan
from loadtests.generator.users import USER_CLASSES
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from loadtests.workloads.files import load_files

_LOOK_SECONDS = 0.5


def _watch_parent(parent: int) -> None:
    """Send SIGTERM to this process when its parent is gone, since nothing else would stop it."""
    while os.getppid() == parent:
        gevent.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?")
    for field in fields(WorkerSpec):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    parser.add_argument("--worker-of", metavar="HOST:PORT", help="run as a worker of the master at this address")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    init_grpc()
    gevent.spawn(_watch_parent, os.getppid())
    if arguments.worker_of:
        run_worker(arguments.worker_of)
        return
    directory = RunDirectory(arguments.directory)
    try:
        plan = with_secrets(directory.plan())
        workers = WorkerSpec(*(getattr(arguments, field.name) for field in fields(WorkerSpec)))
        run_plan(directory, plan, load_files(plan.workload), workers)
    except (LoadError, InflightError) as error:
        print(json.dumps({"message": str(error), "code": error.code}), flush=True)
        sys.exit(1)


def run_worker(master: str) -> None:
    """Send requests for a master until it ends."""
    host, _, port = master.rpartition(":")
    environment = Environment(user_classes=list(USER_CLASSES))
    try:
        runner = environment.create_worker_runner(host, int(port))
    except (ConnectionError, RPCError):
        sys.exit(f"Error: no master at {master}; start the run there, or check the address [load_failed]")
    WorkerLoadTest(environment)
    gevent.signal_handler(signal.SIGTERM, runner.quit)  # ends its users and reports its records
    runner.greenlet.join()


if __name__ == "__main__":
    main()
