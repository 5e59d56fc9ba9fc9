"""A real Triton for the repositories of stand-ins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from inflight.deploy.server import ports, triton
from inflight.deploy.server.instance import MAX_START_ATTEMPTS
from inflight.deploy.server.probe import Probe
from inflight.deploy.server.process import TritonProcess
from inflight.deploy.server.run_directory import ServerRunDirectory

_START_SECONDS = 60.0


@contextmanager
def serve_repository(run: ServerRunDirectory, admin_key: str) -> Iterator[ports.ListenPorts]:
    """Serve the repository in a run directory on free ports, until the end."""
    installation = triton.mirror_wheel(triton.find_triton(), run.path / "triton")
    with ports.reserved_ports(ports.ListenHosts()) as chosen:
        command = triton.server_command(
            installation,
            run.path / "repository",
            hosts=ports.ListenHosts(),
            ports=chosen,
            shm_prefix=run.shm_prefix,
            admin_key=admin_key,
            exit_seconds=1,
        )
        for _ in range(MAX_START_ATTEMPTS):
            process = TritonProcess(command, triton.server_environment(installation), run.log, run.shm_prefix)
            try:
                if _wait_until_ready(process, Probe("127.0.0.1", chosen.http, admin_key)):
                    yield chosen
                    return
            finally:
                process.stop(3)
    raise RuntimeError(run.log.read_text()[-2000:])


def _wait_until_ready(process: TritonProcess, probe: Probe) -> bool:
    """Wait until the server is ready; false if it ended before that, or takes too long."""
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if probe.ready():
            return True
        time.sleep(0.05)
    return False
