"""A job that writes embeddings to PostgreSQL and is killed comes to what an undisturbed one comes to."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.scenarios import VECTORS, Trial
from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.postgresql import PostgreSql

POINTS = ("table.put", "table.commit", "table.committed", "delivered", "commit")


@pytest.fixture
def trial(
    scripted_encoders: EncoderServer, lives: JobProcesses, postgresql: PostgreSql, tmp_path: Path
) -> Callable[[str], Trial]:
    """Makes a job of this name."""
    address = scripted_encoders.grpc_address
    return lambda name: Trial(VECTORS, lives, address, tmp_path / name, postgresql.database())


def test_a_job_that_is_killed_writes_each_vector_once(trial: Callable[[str], Trial]) -> None:
    undisturbed = trial("undisturbed")
    reached = undisturbed.noted()
    assert reached["table.commit"] > 2
    expected = undisturbed.came_to()
    rows = expected[1]
    assert isinstance(rows, list)
    assert len(rows) > 90
    assert rows[-1] == (1,)
    killed = trial("killed")
    assert killed.die_at_each([point for point in POINTS if point in reached]) == []
    assert killed.came_to() == expected


@pytest.mark.slow
def test_a_job_that_is_killed_at_any_moment_writes_each_vector_once(
    trial: Callable[[str], Trial], lives: JobProcesses
) -> None:
    undisturbed = trial("undisturbed")
    reached = undisturbed.noted()
    expected = undisturbed.came_to()
    for point, times in reached.items():
        for number in {1, 1 + times // 2, times}:
            killed = trial(f"{point}-{number}")
            killed.die(point, number)
            assert killed.came_to() == expected, f"{point}, time {number}"
    draw = random.Random(3)
    killed = trial("killed")
    for _ in range(20):
        life = lives.start(*killed.arguments(killed.scenario.last))
        life.ended.wait(draw.uniform(0.05, 0.8))
        life.send(signal.SIGKILL)
        life.wait()
    assert killed.live(killed.scenario.last) == killed.ended
    assert killed.came_to() == expected
