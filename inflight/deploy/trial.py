"""Starts the server with a model of three lines: the one sure way to learn whether this machine can serve."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

from inflight.deploy import log, ports, triton
from inflight.deploy.errors import DeployError, ServerCrashError, refused
from inflight.deploy.life import START_ATTEMPTS, crashed, in_words
from inflight.deploy.probe import Probe, ProbeError
from inflight.deploy.process import TritonProcess
from inflight.deploy.run_directory import RunDirectory

_CONFIG = """
name: "trial"
backend: "python"
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
instance_group { kind: KIND_CPU }
"""
_MODEL = """
import triton_python_backend_utils as pb_utils
from inflight.runtime.engine import STEPPERS

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]) for text in texts]
"""
_SECONDS = 30.0


def trial_start() -> str:
    """Start, ask once, stop; returns the server's version. Raises DeployError with what went wrong."""
    try:
        for _ in range(START_ATTEMPTS - 1):
            with contextlib.suppress(ServerCrashError):
                return _trial_start()
        return _trial_start()
    except OSError as error:
        raise refused(error) from error


def _trial_start() -> str:
    installation = triton.find()
    hosts, key = ports.Hosts(), secrets.token_hex(16)
    chosen = ports.choose(hosts, None, None, None)
    run = RunDirectory.create()
    try:
        model = run.path / "repository" / "trial"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_CONFIG)
        (model / "1" / "model.py").write_text(_MODEL)
        installation = triton.mirror(installation, run.path / "triton")
        command = triton.command(
            installation,
            run.path / "repository",
            hosts=hosts,
            ports=chosen,
            shm_prefix=run.shm_prefix,
            admin_key=key,
            exit_seconds=1,
        )
        process = TritonProcess(command, triton.environment(installation), run.log, run.shm_prefix)
        try:
            return _version(process, Probe(hosts.http, chosen.http, key), run.log)
        finally:
            process.end(3)
    finally:
        run.close()


def _version(process: TritonProcess, probe: Probe, log_file: Path) -> str:
    deadline = time.monotonic() + _SECONDS
    while not probe.ready():
        code = process.poll()
        if code is not None:
            kind = ServerCrashError if crashed(code) else DeployError
            raise kind(f"tritonserver ended with {in_words(code)}: {log.reason(log_file)}", "server_start_failed")
        if time.monotonic() > deadline:
            raise DeployError(
                f"tritonserver was not ready after {_SECONDS:.0f} s: {log.reason(log_file)}", "server_start_failed"
            )
        time.sleep(0.05)
    try:
        probe.generate(_SECONDS, "trial")
        return str(probe.metadata()["version"])
    except ProbeError as error:
        raise DeployError(f"A python model fails: {error}; {log.reason(log_file)}", "server_start_failed") from error
