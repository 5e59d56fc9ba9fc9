"""A job whose prompts contain passages is killed, and comes to what an undisturbed one comes to."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import WORDS
from tests.batch.crash.scenarios import SCENARIOS, Scenario, Trial
from tests.batch.outputs.shop import Shop
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_encoder import DIMENSIONS, expected_vector
from tests.fixtures.postgresql import PostgreSql

POINTS = ("lines.written", "commit")


@pytest.fixture(scope="module")
def scenario(scripted_encoders: EncoderServer, postgresql: PostgreSql) -> Iterator[Scenario]:
    """Rows that search a table of ten passages, with an encoder whose vectors depend on the texts only."""
    shop = Shop(postgresql.database())
    shop.do(
        "CREATE EXTENSION vector",
        f"CREATE TABLE docs (id TEXT PRIMARY KEY, text TEXT, embedding vector({DIMENSIONS}))",
        *(f"INSERT INTO docs VALUES ('{word}', '{word}', '{expected_vector(word).tolist()}')" for word in WORDS),
    )
    retrieval = ("--retrieve", shop.address, "--retrieve-table", "docs", "--retrieve-query", "prompt")
    more = ("--retrieve-server", scripted_encoders.grpc_address, "--retrieve-rerank", "--texts-per-request", "8")
    options = ("--max-tokens", "4", "--template", "{{ passages }} {{ prompt }}", *retrieval, *more)
    yield replace(SCENARIOS["lines"], options=options)
    shop.close()


def test_a_job_that_is_killed_answers_each_row_once_from_the_same_passages(
    scenario: Scenario, paced_server: Server, lives: JobProcesses, tmp_path: Path
) -> None:
    undisturbed = Trial(scenario, lives, paced_server.grpc_address, tmp_path / "undisturbed")
    reached = undisturbed.noted()
    expected = undisturbed.came_to()
    assert b'"sources":[{"id":' in b"".join(expected[0].values())
    trial = Trial(scenario, lives, paced_server.grpc_address, tmp_path / "killed")
    trial.die_at_each([point for point in POINTS if point in reached])
    assert trial.came_to() == expected


@pytest.mark.slow
def test_a_job_that_is_killed_at_any_moment_answers_each_row_once(
    scenario: Scenario, paced_server: Server, lives: JobProcesses, tmp_path: Path
) -> None:
    undisturbed = Trial(scenario, lives, paced_server.grpc_address, tmp_path / "undisturbed")
    assert undisturbed.live(("run",)) == undisturbed.ended
    trial = Trial(scenario, lives, paced_server.grpc_address, tmp_path / "killed")
    draw = random.Random(5)
    for _ in range(20):
        life = lives.start(*trial.arguments(("run",)))
        life.ended.wait(draw.uniform(0.2, 1.2))
        life.send(signal.SIGKILL)
        life.wait()
    assert trial.live(("run",)) == trial.ended
    assert trial.came_to() == undisturbed.came_to()
