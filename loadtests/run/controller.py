"""Runs a load test: inspects the server, starts the generator, follows it, and writes the metadata."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import psutil
from inflight_client import Client
from inflight_client.errors import InflightError

from inflight.common.child_process import child_process, python_module
from loadtests.connection import connect, find_model, without_secrets
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.run.server_metrics import ServerMetricsRecorder
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from loadtests.served_model import tokenizer_hash, with_server_tokenizer

_PACKAGES = ("inflight", "locust", "gevent", "grpcio", "tritonclient", "numpy")


def collect_metadata(plan: LoadPlan, client: Client) -> dict[str, Any]:
    """Collect what is known before the first request. Raises InflightError if the server is not ready."""
    model = find_model(plan, client)
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "deployment": {"kind": model.kind, "model": model.name, "version": model.version},
        "served": dict(model.facts),
        "models": _models(client),
        "machine": {  # that generates the load
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
            "load_average": [round(value, 2) for value in os.getloadavg()],
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "server": plan.server,
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _models(client: Client) -> list[dict[str, str]]:
    """Return the server's models; none if it does not list them."""
    try:
        return [{"name": model.name, "version": model.version, "state": model.state} for model in client.models()]
    except InflightError:
        return []


def _processor() -> str:
    """Return the processor's name from Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


_POLL_SECONDS = 0.25
_IDLE_TIMEOUT = 10.0
"""Maximum seconds for the server to become idle after the last request."""
_QUIT_TIMEOUT = 20.0
_LOG_TAIL_CHARACTERS = 2000


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run: seconds since its start (None before it), open requests, and ended ones by outcome."""

    elapsed: float | None = None
    in_flight: int = 0
    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


def run_load_test(
    plan: LoadPlan, directory: RunDirectory, workers: WorkerSpec, on_progress: Callable[[RunProgress], None]
) -> bool:
    """Run a plan; the results go to `directory`. Return whether Ctrl-C interrupted it; the results until then count.

    Raises LoadError or InflightError if the server is unreachable or the generator fails.
    """
    with connect(plan) as client:
        facts = collect_metadata(plan, client)
    plan = with_server_tokenizer(plan, facts["served"])
    facts["tokenizer"] = tokenizer_hash(plan)
    written, secrets = without_secrets(plan)
    directory.write_plan(written)
    watch = ServerMetricsRecorder(plan, directory)
    facts["workers"] = {"workers": workers.workers, "expected": workers.expected}
    try:
        command = python_module("loadtests.generator.main", str(directory.path), *workers.arguments())
        environment = {**os.environ, "GRPC_VERBOSITY": "NONE", **secrets}
        with directory.log.open("w") as log, child_process(command, log, environment) as generator:
            facts["interrupted"] = _wait_for_generator(generator, directory, watch, on_progress)
    finally:
        try:
            watch.stop(_IDLE_TIMEOUT)
        finally:  # also if the disk is full
            facts["server_metrics_error"] = watch.unavailable_reason
            facts["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
            directory.write_metadata(facts)
    return bool(facts["interrupted"])


def _wait_for_generator(
    generator: subprocess.Popen[str],
    directory: RunDirectory,
    recorder: ServerMetricsRecorder,
    on_progress: Callable[[RunProgress], None],
) -> bool:
    """Wait for the generator's end and report progress; return whether it was interrupted."""
    assert generator.stdout is not None
    try:
        started_at = _read_start(generator, generator.stdout, directory)
        # Not earlier, because a server that has been idle for long runs and counts health checks of its own.
        recorder.sample_before()
        recorder.start(lambda: started_at)
        samples = _GeneratorSamples(directory)
        while generator.poll() is None:
            on_progress(samples.progress(time.monotonic() - started_at))
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        generator.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            generator.wait(_QUIT_TIMEOUT)
        return True
    _check_exit(generator, generator.stdout.read(), directory)
    return False


def _read_start(generator: subprocess.Popen[str], output: IO[str], directory: RunDirectory) -> float:
    """Return when the run begins, on the monotonic clock that all processes of a machine share."""
    line = output.readline()
    values = json.loads(line) if line.startswith("{") else {}
    if "begun" in values:
        return float(values["begun"])
    generator.wait()
    _check_exit(generator, line, directory)
    raise LoadError("the load generator ended before the run began", "load_failed")


def _check_exit(generator: subprocess.Popen[str], output: str, directory: RunDirectory) -> None:
    for line in output.splitlines():
        values = json.loads(line) if line.startswith("{") else {}
        if "message" in values:
            raise LoadError(values["message"], values["code"])
    if generator.returncode:
        words = directory.log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:].strip() or "it printed nothing"
        there = directory.requests.exists() and directory.requests.stat().st_size
        hint = f"; `inflight load report {directory.path}` shows the results until then" if there else ""
        raise LoadError(f"the load generator ended with exit code {generator.returncode}: {words}{hint}", "load_failed")


class _GeneratorSamples:
    """Follows the samples of the generator's processes as they are written."""

    def __init__(self, directory: RunDirectory) -> None:
        self._path = directory.generator
        self._read = 0
        self._last: dict[int, dict[str, Any]] = {}

    def progress(self, t: float) -> RunProgress:
        """Return the sum over all processes."""
        for sample in self._new():
            if not sample.get("lost"):
                self._last[sample["worker"]] = sample
        outcomes: Counter[str] = Counter()
        for sample in self._last.values():
            outcomes.update(sample["outcomes"])
        return RunProgress(
            t,
            sum(sample["open"] for sample in self._last.values()),
            sum(sample["sent"] for sample in self._last.values()),
            outcomes,
        )

    def _new(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)
