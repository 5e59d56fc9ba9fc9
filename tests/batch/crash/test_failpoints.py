"""A job that dies at a point where it leaves a mark, any of them, comes to what an undisturbed one comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from tests.batch.crash.failpoint_names import failpoint_names
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.scenarios import RAY, SCENARIOS, STORAGE, Trial
from tests.fixtures.s3_server import s3_server

OF_STORAGE = {"output.upload", "output.uploaded"}
CARRYING = "remote_state."
"""So begin the points of a state on its way to a storage and back."""
OF_RAY = {"merge", "merged"}
OF_QUEUES = {"queue.settle", "queue.settled", "messages.apart", "segment.rename", "segment.renamed"}
"""Of tests/batch/crash/test_queues.py."""
OF_WORKERS = {"agree", "agreed"}
"""Those of Ray's workers, of which tests/batch/ray/test_worker.py has the failures."""


def test_a_job_dies_at_every_point_and_comes_to_the_same(
    lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    died: set[str] = set()
    for name, scenario in SCENARIOS.items():
        place = tmp_path / name
        place.mkdir()
        undisturbed = Trial(scenario, lives, paced_server.grpc_address, place / "undisturbed")
        reached = undisturbed.noted()
        expected = undisturbed.came_to()
        left = [point for point in reached if point not in died]
        died |= reached.keys()
        while left:
            trial = Trial(scenario, lives, paced_server.grpc_address, place / left[0])
            left = trial.die_at_each(left)
            assert trial.came_to() == expected, name
    for written, pattern in failpoint_names().items():
        known = any(pattern.fullmatch(name) for name in died | OF_STORAGE | OF_RAY | OF_QUEUES | OF_WORKERS)
        assert known or CARRYING in written, f"no scenario comes by failpoint({written})"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_job_dies_at_a_point_for_the_first_and_for_a_later_time(
    name: str, lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    undisturbed = Trial(SCENARIOS[name], lives, paced_server.grpc_address, tmp_path / "undisturbed")
    reached = undisturbed.noted()
    expected = undisturbed.came_to()
    for point, times in reached.items():
        for number in {1, 1 + times // 2}:
            trial = Trial(SCENARIOS[name], lives, paced_server.grpc_address, tmp_path / f"{point}-{number}")
            trial.die(point, number)
            assert trial.came_to() == expected, f"{point}, time {number}"


@pytest.mark.slow
def test_a_job_that_dies_at_an_upload_uploads_again(
    lives: JobProcesses, paced_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as storage:
        monkeypatch.setenv("AWS_ENDPOINT_URL", storage.endpoint)  # for looking at what came there
        keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": storage.endpoint}

        def trial(name: str) -> Trial:
            place = f"{storage.bucket}/{name}"
            return Trial(STORAGE, lives, paced_server.grpc_address, tmp_path / name, place, keys)

        undisturbed = trial("undisturbed")
        reached = undisturbed.noted().keys()
        assert reached >= OF_STORAGE
        expected = undisturbed.came_to()
        for point in sorted(name for name in reached if name in OF_STORAGE or name.startswith(CARRYING)):
            for number in (1, 2):
                killed = trial(f"{point}-{number}")
                killed.die(point, number)
                assert killed.came_to() == expected


@pytest.mark.slow
def test_a_job_that_dies_while_parts_are_merged_merges_them_again(
    lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    undisturbed = Trial(RAY, lives, paced_server.grpc_address, tmp_path / "undisturbed")
    assert undisturbed.noted().keys() >= OF_RAY
    expected = undisturbed.came_to()
    for point in sorted(OF_RAY):
        trial = Trial(RAY, lives, paced_server.grpc_address, tmp_path / point)
        trial.die(point, 1)
        assert trial.came_to() == expected
