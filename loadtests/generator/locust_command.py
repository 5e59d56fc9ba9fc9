"""What Locust's own command is told of us: a plan's options, the users that fit it, and where results go."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import WorkerRunner

from loadtests.connection import connect, without_secrets
from loadtests.errors import LoadError
from loadtests.facts import facts_before
from loadtests.generator.grpc_waits import init_grpc
from loadtests.generator.load_test import LoadTest
from loadtests.generator.result_files import NoFiles, ResultFiles
from loadtests.generator.users import ClosedLoopUser, ScheduledArrivals, user_class_of
from loadtests.plan import Plan
from loadtests.plan_check import check_plan, check_workload
from loadtests.plan_options import plan_of, plan_options
from loadtests.run_directory import RunDirectory
from loadtests.server_watch import ServerWatch
from loadtests.workloads.files import load_files

_LOCUSTS_OWN = ("users", "address", "seconds", "grace")
"""Locust says these: --users, --host, --run-time, --stop-timeout."""
_FOR_EVER = 10 * 365 * 86400.0
_REST_SECONDS = 5.0
_DEFAULT_HOST = Plan.model_fields["address"].default


class LocustCommand:
    """One process of `locust -f`: alone, a master, or a worker."""

    @classmethod
    def listen(cls, events: Any) -> None:
        """Hear of Locust's command line, and of the environment that it makes."""
        events.init_command_line_parser.add_listener(_add_options)
        events.init.add_listener(lambda environment, **_: cls(environment))

    def __init__(self, environment: Environment) -> None:
        init_grpc()
        self._environment = environment
        self._options = environment.parsed_options
        if isinstance(environment.runner, WorkerRunner):
            LoadTest(environment, NoFiles())
            return
        try:
            plan = self._plan()
            check_plan(plan)
            check_workload(plan)
            _choose_users(environment, plan)
            self._directory = RunDirectory.make(Path(self._options.out)) if self._options.out else None
        except LoadError as error:
            sys.exit(f"Error: {error} [{error.code}]")
        if not self._options.stop_timeout:
            environment.stop_timeout = plan.grace
        self._watch: ServerWatch | None = None
        self._results = NoFiles() if self._directory is None else ResultFiles(self._directory)
        self._test = LoadTest(environment, self._results, self._start)
        environment.events.test_stop.add_listener(self._stop)
        # Locust starts the clock of --run-time by this loop's, which stood still while all was imported.
        gevent.get_hub().loop.update_now()

    def _plan(self) -> Plan:
        """By the options, as they are now: the web page may change them before each test."""
        given = {option.key: getattr(self._options, option.key, None) for option in plan_options()}
        given = {name: value or None for name, value in given.items()}
        given |= {
            "users": None,
            "address": self._environment.host or _DEFAULT_HOST,
            "seconds": self._options.run_time or _FOR_EVER,
            "grace": self._options.stop_timeout or None,
        }
        plan = plan_of(given)
        picked = [kind for kind in self._environment.user_classes if issubclass(kind, ClosedLoopUser)]
        return plan.model_copy(update={"way": picked[0].way}) if len(picked) == 1 else plan

    def _start(self) -> tuple[Plan, Mapping[str, bytes]]:
        plan = self._plan()
        if self._directory is not None:
            self._directory.write_plan(without_secrets(plan)[0])
            with connect(plan) as client:
                self._facts = facts_before(plan, client)
            self._watch = ServerWatch(plan, self._directory)
            self._watch.before()
            self._watch.watch(lambda: self._test.begun)
        return plan, load_files(plan.workload)

    def _stop(self, **_: Any) -> None:
        if self._directory is None or self._watch is None:
            return
        watch, self._watch = self._watch, None
        watch.after(_REST_SECONDS)
        self._directory.write_facts({**self._facts, "interrupted": False, "no_server_metrics": watch.absent})


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("inflight", "What is asked of the server, and when.")
    for option in plan_options():
        if option.name in _LOCUSTS_OWN:
            continue
        # Locust's parser takes % in a help for its own.
        words: dict[str, Any] = {"help": option.help.replace("%", "%%"), "default": "", "dest": option.key}
        if option.choices:
            words |= {"choices": ["", *option.choices]}
        if option.flag:
            words |= {"choices": ["", "true", "false"]}
        if option.many:
            words |= {"action": "append", "default": []}
        group.add_argument(f"--{option.name}", **words)
    group.add_argument("--out", default="", help="A new directory for the records of the test.")


def _choose_users(environment: Environment, plan: Plan) -> None:
    """The users that the command line names, or the ones that fit the plan. Raises LoadError for those that don't."""
    wanted = user_class_of(plan)
    named = getattr(environment.parsed_options, "user_classes", None) or []
    if named and [kind.__name__ for kind in environment.user_classes] != [wanted.__name__]:
        raise LoadError(
            f"{', '.join(named)} can't make this load at {plan.address}; {wanted.__name__} can, or name none",
            "invalid_parameter",
        )
    environment.user_classes[:] = [wanted]
    options = environment.parsed_options
    if wanted is ScheduledArrivals:  # one for each process that sends
        options.num_users = max(options.num_users or 1, getattr(options, "expect_workers", None) or 1)
        options.spawn_rate = options.num_users
