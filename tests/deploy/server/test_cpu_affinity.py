"""The server's processes keep together; the engine has every core."""

from __future__ import annotations

import os

import psutil
import pytest

from inflight.deploy.server.server import Server
from inflight.deploy.server.triton import ENGINE_CORES, SERVER_CORES, affinity_environment


@pytest.mark.parametrize(
    ("allowed", "groups"),
    [
        ({0}, {"0"}),
        ({0, 1}, {"0", "1"}),
        ({2, 3, 5}, {"2", "3", "5"}),
        (set(range(17)), {f"{core},{core + 1}" for core in range(0, 16, 2)}),
    ],
)
def test_the_server_gets_one_core_for_every_eight_and_servers_spread(allowed: set[int], groups: set[str]) -> None:
    drawn = [affinity_environment(allowed) for _ in range(400)]
    assert {variables[SERVER_CORES] for variables in drawn} == groups
    assert {variables[ENGINE_CORES] for variables in drawn} == {",".join(map(str, sorted(allowed)))}


def test_a_running_server_is_laid_out_so(server: Server) -> None:
    allowed = os.sched_getaffinity(0)
    expected = set(psutil.Process(server.pid).cpu_affinity())
    assert len(expected) == max(1, len(allowed) // 8)
    for member in server.instance.process_tree:
        process = psutil.Process(member.pid)
        engine = "engine's process" in member.name
        assert set(process.cpu_affinity()) == (allowed if engine else expected), member.name
        assert os.sched_getscheduler(member.pid) == (os.SCHED_OTHER if engine else os.SCHED_BATCH), member.name
