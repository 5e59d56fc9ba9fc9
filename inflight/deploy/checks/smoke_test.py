"""Starts the server with a three-line model, to test whether this machine can serve."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

from inflight.deploy.errors import DeployError, ServerCrashError, system_error
from inflight.deploy.server import ports, triton, triton_log
from inflight.deploy.server.instance import MAX_START_ATTEMPTS, describe_exit, is_crash
from inflight.deploy.server.probe import Probe, ProbeError
from inflight.deploy.server.process import TritonProcess
from inflight.deploy.server.run_directory import ServerRunDirectory

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
from inflight.runtime.engine.interface import BACKENDS

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]) for text in texts]
"""
_TIMEOUT = 30.0


def smoke_test() -> str:
    """Start the server, send one request, stop it; return the server's version. Raises DeployError if a step fails."""
    try:
        for _ in range(MAX_START_ATTEMPTS - 1):
            with contextlib.suppress(ServerCrashError):
                return _start_and_generate()
        return _start_and_generate()
    except OSError as error:
        raise system_error(error) from error


def _start_and_generate() -> str:
    installation = triton.find_triton()
    hosts, key = ports.ListenHosts(), secrets.token_hex(16)
    with ports.reserved_ports(hosts) as chosen, contextlib.closing(ServerRunDirectory.create()) as run:
        model = run.path / "repository" / "trial"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_CONFIG)
        (model / "1" / "model.py").write_text(_MODEL)
        installation = triton.mirror_wheel(installation, run.path / "triton")
        command = triton.server_command(
            installation,
            run.path / "repository",
            hosts=hosts,
            ports=chosen,
            shm_prefix=run.shm_prefix,
            admin_key=key,
            exit_seconds=1,
        )
        process = TritonProcess(command, triton.server_environment(installation), run.log, run.shm_prefix)
        try:
            return _wait_for_version(process, Probe(hosts.http, chosen.http, key), run.log)
        finally:
            process.stop(3)


def _wait_for_version(process: TritonProcess, probe: Probe, log_file: Path) -> str:
    deadline = time.monotonic() + _TIMEOUT
    while not probe.ready():
        code = process.poll()
        if code is not None:
            kind = ServerCrashError if is_crash(code) else DeployError
            raise kind(
                f"tritonserver ended with {describe_exit(code)}: {triton_log.failure_reason(log_file)}",
                "server_start_failed",
            )
        if time.monotonic() > deadline:
            raise DeployError(
                f"tritonserver was not ready after {_TIMEOUT:.0f} s: {triton_log.failure_reason(log_file)}",
                "server_start_failed",
            )
        time.sleep(0.05)
    try:
        probe.generate(_TIMEOUT, "trial")
        return str(probe.metadata()["version"])
    except ProbeError as error:
        raise DeployError(
            f"A python model fails: {error}; {triton_log.failure_reason(log_file)}", "server_start_failed"
        ) from error
