"""Integrates with Locust's own command: a plan's options, the users that match it, and the results."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent
from flask import Response, abort, jsonify, request
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from inflight.common.schema.cli_options import FieldOption
from loadtests.connection import connect, without_secrets
from loadtests.errors import LoadError
from loadtests.generator.load_test import LoadTestSpec, LocalLoadTest, ResultFiles, init_grpc
from loadtests.generator.master import MasterLoadTest, WorkerLoadTest
from loadtests.generator.users import user_class_for
from loadtests.plan import LoadPlan
from loadtests.plan_options import plan_from_options, plan_options
from loadtests.run.controller import collect_metadata
from loadtests.run.plan_check import check_plan, check_workload
from loadtests.run.server_metrics import ServerMetricsRecorder
from loadtests.run_directory import RunDirectory
from loadtests.workloads.distributions import trace_reference
from loadtests.workloads.files import SAMPLE, load_files

_IDLE_TIMEOUT = 5.0


class LocustResults:
    """Records the server's metrics before, during and after a test, beside the test's records.

    Raises LoadError or InflightError if the directory cannot be created or the server is unreachable.
    """

    def __init__(self, path: Path, plan: LoadPlan, start: Callable[[], float | None]) -> None:
        self._plan = plan
        with connect(plan) as client:
            self._metadata = collect_metadata(plan, client)
        self._directory = RunDirectory.create(path)
        self._directory.write_plan(without_secrets(plan)[0])
        self.files = ResultFiles(self._directory)
        self._recorder = ServerMetricsRecorder(plan, self._directory)
        self._recorder.sample_before()
        self._recorder.start(start)

    def set_duration(self, seconds: float) -> None:
        """Set the measured part to the time until Locust ended the test."""
        measured = min(self._plan.seconds, seconds - self._plan.warmup)
        if measured > 0:
            self._plan = self._plan.model_copy(update={"seconds": measured})
            self._directory.write_plan(without_secrets(self._plan)[0])

    def close(self) -> None:
        """Close the files; all records have been written."""
        self._recorder.stop(_IDLE_TIMEOUT)
        self.files.close()
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"interrupted": False, "server_metrics_error": self._recorder.unavailable_reason, "ended": ended}
        self._directory.write_metadata({**self._metadata, **facts})


_LOCUST_OPTIONS = ("users", "server", "seconds", "drain_seconds")
"""Options that Locust has itself: --users, --host, --run-time, --stop-timeout."""
_HIDDEN_ON_WEB = (
    *("header", "ca", "certificate", "key", "metrics-url"),
    *("prompts", "trace", "tokenizer", "chat-template"),
)
"""Options for secrets, their destination and files: more people may have access to Locust's page than to its command
line."""
_LOCUST_FORM_FIELDS = {"host", "run_time", "spawn_rate", "user_classes", "profile"}
"""Names that Locust's page uses for options of its command line."""
_SECRETS = ("header", "ca", "certificate", "key")
_RESULT_TIMEOUT = 5.0
_UNLIMITED_SECONDS = 10 * 365 * 86400.0
_DEFAULT_HOST = LoadPlan.model_fields["server"].default


class LocustCommand:
    """One process of `locust -f`: alone, a master or a worker."""

    @classmethod
    def register(cls, events: Any) -> None:
        """Subscribe to Locust's command line and to the environment that it creates."""
        events.init_command_line_parser.add_listener(_add_options)
        events.init.add_listener(lambda environment, **_: cls(environment))

    def __init__(self, environment: Environment) -> None:
        init_grpc()
        if isinstance(environment.runner, WorkerRunner):
            WorkerLoadTest(environment, table=True)
            return
        self._environment = environment
        self._options = environment.parsed_options
        self._results: LocustResults | None = None
        self._tests = 0
        try:
            plan = self._plan()
            _choose_users(environment, plan)
            check_workload(plan)
        except LoadError as error:
            sys.exit(f"Error: {error} [{error.code}]")
        self._given = dict(vars(self._options))
        self._address = plan.server
        self._web_fields = {option.key for option in plan_options() if _shown_on_web(option)} | _LOCUST_FORM_FIELDS
        if environment.web_ui is not None:
            environment.web_ui.app.before_request(self._refuse_form)
        if not self._options.stop_timeout:
            environment.stop_timeout = plan.drain_seconds
        if isinstance(environment.runner, MasterRunner):
            self._test: LocalLoadTest | MasterLoadTest = MasterLoadTest(environment, self._make_spec)
        else:
            self._test = LocalLoadTest(environment, self._make_spec, table=True)
        environment.events.test_stopping.add_listener(self._on_stopping)
        environment.events.test_stop.add_listener(self._on_stop)
        # Locust measures --run-time by this loop's clock, which did not advance during the imports.
        gevent.get_hub().loop.update_now()

    def _plan(self) -> LoadPlan:
        """Return the plan for the current options; the web page may change them before each test."""
        options = {option.key: getattr(self._options, option.key, None) or None for option in plan_options()}
        options |= {
            "users": None,
            "server": self._environment.host or _DEFAULT_HOST,
            "seconds": self._options.run_time or _UNLIMITED_SECONDS,
            "drain_seconds": self._options.stop_timeout or None,
        }
        if named := getattr(self._options, "user_classes", None):
            options["mode"] = next(kind.mode for kind in self._environment.user_classes if kind.__name__ in named)
        plan = plan_from_options(options)
        check_plan(plan)
        return plan

    def _refuse_form(self) -> Response | None:
        """Answer instead of Locust if the page sends an option that only the command line may set.

        Locust accepts any of its own options and of ours from a form. The page may not choose files of this machine,
        output paths, or the server that receives the command line's headers and certificates. Nor may a page of another
        origin, which a browser names, do anything.
        """
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            abort(403)
        why = next(filter(None, (self._form_error(key, value) for key, value in request.form.items())), None)
        if why is None:
            return None
        return jsonify({"success": False, "message": f"{why} [invalid_parameter]", "host": self._environment.host})

    def _form_error(self, key: str, value: str) -> str | None:
        if value == str(self._given.get(key) or ""):
            return None
        if key == "host":
            secret = any(self._given.get(name) for name in _SECRETS) and (value or _DEFAULT_HOST) != self._address
            return (
                f"headers and certificates are only for {self._address}; restart Locust to change the host"
                if secret
                else None
            )
        if key in self._given and key not in self._web_fields:
            return f"{key} cannot be set on the page; give it on Locust's command line"
        file = trace_reference(value)
        if file is not None and not file.startswith(SAMPLE):
            return f"{key} names the file {file}; give it on Locust's command line"
        return None

    def _make_spec(self) -> LoadTestSpec:
        plan = self._plan()
        files = load_files(plan.workload)
        self._tests += 1
        if not self._options.out:
            return LoadTestSpec(plan, files, None)
        out = Path(self._options.out)
        # The web page starts one test after another; each has its own directory.
        place = out if self._tests == 1 else out.with_name(f"{out.name}-{self._tests}")
        self._results = LocustResults(place, plan, lambda: self._test.started_at)
        return LoadTestSpec(plan, files, self._results.files)

    def _on_stopping(self, **_: Any) -> None:
        if self._results is not None and self._test.started_at is not None:
            self._results.set_duration(time.monotonic() - self._test.started_at)

    def _on_stop(self, **_: Any) -> None:
        kept, self._results = self._results, None
        if kept is not None:
            if self._test.started_at is not None:  # workers report their last records later
                self._test.finished.wait(self._environment.stop_timeout + _RESULT_TIMEOUT)
            kept.close()


def _add_options(parser: ArgumentParser) -> None:
    """Add our options to Locust's. The web page shows those that are not secrets, files or repeatable."""
    parser.set_defaults(web_host="127.0.0.1", master_bind_host="127.0.0.1")  # workers get the headers
    for option in plan_options():
        if option.name not in _LOCUST_OPTIONS:
            parser.add_argument(f"--{option.name}", **_argparse_arguments(option))
    parser.add_argument("--out", default="", help="New directory for the records of the test.", include_in_web_ui=False)


def _argparse_arguments(option: FieldOption) -> dict[str, Any]:
    # Locust's parser interprets % in help texts.
    words: dict[str, Any] = {"help": option.help.replace("%", "%%"), "default": "", "dest": option.key}
    if option.choices:
        words["choices"] = ["", *option.choices]
    if option.flag:
        words["choices"] = ["", "true", "false"]
    if option.multiple:
        words |= {"action": "append", "default": []}
    words["include_in_web_ui"] = _shown_on_web(option)
    return words


def _shown_on_web(option: FieldOption) -> bool:
    return not option.multiple and option.name not in _HIDDEN_ON_WEB


def _choose_users(environment: Environment, plan: LoadPlan) -> None:
    """Use the user class that the command line names, or one that matches the plan. Raises LoadError on a mismatch."""
    user_class = user_class_for(plan)
    named = getattr(environment.parsed_options, "user_classes", None) or []
    if named and [kind.__name__ for kind in environment.user_classes] != [user_class.__name__]:
        raise LoadError(
            f"{', '.join(named)} can't make this load at {plan.server}; {user_class.__name__} can, or name none",
            "invalid_parameter",
        )
    environment.user_classes[:] = [user_class]
