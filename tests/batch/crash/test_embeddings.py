"""A job that writes embeddings to PostgreSQL and is killed comes to what an undisturbed one comes to."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.scenarios import VECTORS, Trial
from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.postgresql import PostgreSql

POINTS = ("table.put", "table.commit", "table.committed", "delivered", "commit")


def test_a_job_that_is_killed_writes_each_vector_once(
    scripted_encoders: EncoderServer, lives: JobProcesses, postgresql: PostgreSql, tmp_path: Path
) -> None:
    undisturbed = Trial(VECTORS, lives, scripted_encoders.grpc_address, tmp_path / "undisturbed", postgresql.database())
    reached = undisturbed.noted()
    assert reached["table.commit"] > 2
    expected = undisturbed.came_to()
    rows = expected[1]
    assert isinstance(rows, list)
    assert len(rows) > 90
    assert rows[-1] == (1,)
    trial = Trial(VECTORS, lives, scripted_encoders.grpc_address, tmp_path / "killed", postgresql.database())
    assert trial.die_at_each([point for point in POINTS if point in reached]) == []
    assert trial.came_to() == expected


@pytest.mark.slow
def test_a_job_that_is_killed_at_any_moment_writes_each_vector_once(
    scripted_encoders: EncoderServer, lives: JobProcesses, postgresql: PostgreSql, tmp_path: Path
) -> None:
    undisturbed = Trial(VECTORS, lives, scripted_encoders.grpc_address, tmp_path / "undisturbed", postgresql.database())
    reached = undisturbed.noted()
    expected = undisturbed.came_to()
    for point, times in reached.items():
        for number in {1, 1 + times // 2, times}:
            trial = Trial(
                VECTORS, lives, scripted_encoders.grpc_address, tmp_path / f"{point}-{number}", postgresql.database()
            )
            trial.die(point, number)
            assert trial.came_to() == expected, f"{point}, time {number}"
    draw = random.Random(3)
    trial = Trial(VECTORS, lives, scripted_encoders.grpc_address, tmp_path / "killed", postgresql.database())
    for _ in range(20):
        life = lives.start(*trial.arguments(trial.scenario.last))
        life.ended.wait(draw.uniform(0.05, 0.8))
        life.send(signal.SIGKILL)
        life.wait()
    assert trial.live(trial.scenario.last) == trial.ended
    assert trial.came_to() == expected
