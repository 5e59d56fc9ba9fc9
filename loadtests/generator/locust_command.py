"""What Locust's own command is told of us: a plan's options, the users that fit it, and where results go."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import gevent
from flask import Response, jsonify, request
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtests.errors import LoadError
from loadtests.generator.grpc_waits import init_grpc
from loadtests.generator.kept_test import KeptTest
from loadtests.generator.load_test import Asked, LoneTest
from loadtests.generator.master import Master, Worker
from loadtests.generator.result_files import NoFiles
from loadtests.generator.users import user_class_of
from loadtests.plan import Plan
from loadtests.plan_check import check_plan, check_workload
from loadtests.plan_options import PlanOption, plan_of, plan_options
from loadtests.workloads.files import SAMPLE, load_files
from loadtests.workloads.lengths import trace_reference

_LOCUSTS_OWN = ("users", "address", "seconds", "grace")
"""Locust says these: --users, --host, --run-time, --stop-timeout."""
_NOT_ON_THE_PAGE = (
    *("header", "ca", "certificate", "key", "metrics-url"),
    *("prompts", "trace", "tokenizer", "chat-template"),
)
"""Secrets, where they are sent, and files: Locust's page may be open to more people than its command line."""
_LOCUSTS_FIELDS = {"host", "run_time", "spawn_rate", "user_classes", "profile"}
"""What Locust's page sends of the options that its command line has too."""
_SECRETS = ("header", "ca", "certificate", "key")
_TOLD_SECONDS = 5.0
_FOR_EVER = 10 * 365 * 86400.0
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
        if isinstance(environment.runner, WorkerRunner):
            Worker(environment, table=True)
            return
        self._environment = environment
        self._options = environment.parsed_options
        self._kept: KeptTest | None = None
        self._tests = 0
        try:
            plan = self._plan()
            _choose_users(environment, plan)
            check_workload(plan)
        except LoadError as error:
            sys.exit(f"Error: {error} [{error.code}]")
        self._given = dict(vars(self._options))
        self._address = plan.address
        self._on_page = {option.key for option in plan_options() if _on_page(option)} | _LOCUSTS_FIELDS
        if environment.web_ui is not None:
            environment.web_ui.app.before_request(self._refuse)
        if not self._options.stop_timeout:
            environment.stop_timeout = plan.grace
        if isinstance(environment.runner, MasterRunner):
            self._test: LoneTest | Master = Master(environment, self._ask)
        else:
            self._test = LoneTest(environment, self._ask, table=True)
        environment.events.test_stopping.add_listener(self._on_stopping)
        environment.events.test_stop.add_listener(self._on_stop)
        # Locust starts the clock of --run-time by this loop's, which stood still while all was imported.
        gevent.get_hub().loop.update_now()

    def _plan(self) -> Plan:
        """By the options, as they are now: the web page may change them before each test."""
        given = {option.key: getattr(self._options, option.key, None) or None for option in plan_options()}
        given |= {
            "users": None,
            "address": self._environment.host or _DEFAULT_HOST,
            "seconds": self._options.run_time or _FOR_EVER,
            "grace": self._options.stop_timeout or None,
        }
        if named := getattr(self._options, "user_classes", None):
            given["way"] = next(kind.way for kind in self._environment.user_classes if kind.__name__ in named)
        plan = plan_of(given)
        check_plan(plan)
        return plan

    def _refuse(self) -> Response | None:
        """Answer in Locust's place where the page is asked for what the command line alone may say.

        Locust takes any of its own options and of ours from a form. Files of this machine, the places that it writes
        to, and the server that gets the command line's headers and certificates are not the page's to choose.
        """
        why = next(filter(None, (self._fault(key, value) for key, value in request.form.items())), None)
        if why is None:
            return None
        return jsonify({"success": False, "message": f"{why} [invalid_parameter]", "host": self._environment.host})

    def _fault(self, key: str, value: str) -> str | None:
        if value == str(self._given.get(key) or ""):
            return None
        if key == "host":
            secret = any(self._given.get(name) for name in _SECRETS) and (value or _DEFAULT_HOST) != self._address
            return f"headers and certificates are for {self._address} alone; start Locust anew" if secret else None
        if key in self._given and key not in self._on_page:
            return f"{key} is not the page's to choose; give it on Locust's command line"
        file = trace_reference(value)
        if file is not None and not file.startswith(SAMPLE):
            return f"{key} names the file {file}; give it on Locust's command line"
        return None

    def _ask(self) -> Asked:
        plan = self._plan()
        files = load_files(plan.workload)
        self._tests += 1
        if not self._options.out:
            return Asked(plan, files, NoFiles())
        out = Path(self._options.out)
        # The web page starts one test after another; each has a directory of its own.
        place = out if self._tests == 1 else out.with_name(f"{out.name}-{self._tests}")
        self._kept = KeptTest(place, plan, lambda: self._test.begun)
        return Asked(plan, files, self._kept.files)

    def _on_stopping(self, **_: Any) -> None:
        if self._kept is not None and self._test.begun is not None:
            self._kept.sent_for(time.monotonic() - self._test.begun)

    def _on_stop(self, **_: Any) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            if self._test.begun is not None:  # workers tell their last in their own time
                self._test.ended.wait(self._environment.stop_timeout + _TOLD_SECONDS)
            kept.close()


def _add_options(parser: ArgumentParser) -> None:
    """Ours beside Locust's own; on its page too, but for those that are secrets or files, or may be given again."""
    parser.set_defaults(web_host="127.0.0.1", master_bind_host="127.0.0.1")  # workers get the headers
    for option in plan_options():
        if option.name not in _LOCUSTS_OWN:
            parser.add_argument(f"--{option.name}", **_words(option))
    parser.add_argument(
        "--out", default="", help="A new directory for the records of the test.", include_in_web_ui=False
    )


def _words(option: PlanOption) -> dict[str, Any]:
    # Locust's parser takes % in a help for its own.
    words: dict[str, Any] = {"help": option.help.replace("%", "%%"), "default": "", "dest": option.key}
    if option.choices:
        words["choices"] = ["", *option.choices]
    if option.flag:
        words["choices"] = ["", "true", "false"]
    if option.many:
        words |= {"action": "append", "default": []}
    words["include_in_web_ui"] = _on_page(option)
    return words


def _on_page(option: PlanOption) -> bool:
    return not option.many and option.name not in _NOT_ON_THE_PAGE


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
