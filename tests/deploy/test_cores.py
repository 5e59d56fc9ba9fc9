"""The server's processes keep together; the engine has every core."""

from __future__ import annotations

import os

import psutil
import pytest

from inflight.deploy.cores import ENGINE_CORES, SERVER_CORES, variables
from inflight.deploy.server import Server


@pytest.mark.parametrize(
    ("allowed", "server", "engine"),
    [({0}, "0", "0"), ({0, 1}, "1", "0,1"), ({2, 3, 5}, "5", "2,3,5"), (set(range(16)), "14,15", None)],
)
def test_the_server_gets_one_core_for_every_eight(allowed: set[int], server: str, engine: str | None) -> None:
    found = variables(allowed)
    assert found[SERVER_CORES] == server
    assert found[ENGINE_CORES] == (engine or ",".join(map(str, range(16))))


def test_a_running_server_is_laid_out_so(server: Server) -> None:
    allowed = os.sched_getaffinity(0)
    expected = set(map(int, variables()[SERVER_CORES].split(",")))
    for member in server.life.family:
        process = psutil.Process(member.pid)
        engine = "engine's process" in member.name
        assert set(process.cpu_affinity()) == (allowed if engine else expected), member.name
        assert os.sched_getscheduler(member.pid) == (os.SCHED_OTHER if engine else os.SCHED_BATCH), member.name
