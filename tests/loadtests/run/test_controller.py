"""What the conductor makes of a generator that fails, and what it writes of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from loadtests.errors import LoadError
from loadtests.run.controller import RunProgress, run_load_test
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.load_runs import read_records
from tests.loadtests.run.plans import plan


def test_a_generator_that_dies_at_once_is_told(
    paced_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    directory = RunDirectory.create(tmp_path / "run")
    with pytest.raises(LoadError) as raised:
        run_load_test(plan(paced_server), directory, WorkerSpec(), lambda found: None)
    assert (str(raised.value), raised.value.code) == (
        "the load generator ended with exit code 1: it printed nothing",
        "load_failed",
    )


def test_what_a_generator_says_is_the_error(paced_server: Server, tmp_path: Path) -> None:
    wrong = plan(paced_server, workload=WorkloadSpec(prompts="nowhere.jsonl"))
    with pytest.raises(LoadError) as raised:
        run_load_test(wrong, RunDirectory.create(tmp_path / "run"), WorkerSpec(), lambda found: None)
    assert (str(raised.value), raised.value.code) == (
        "nowhere.jsonl can't be read: No such file or directory",
        "workload_invalid",
    )


def test_progress_and_facts_are_those_of_the_run(paced_server: Server, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    told: list[RunProgress] = []
    assert run_load_test(plan(paced_server, seconds=1.5), directory, WorkerSpec(), told.append) is False
    assert told
    assert [found.elapsed for found in told] == sorted(found.elapsed or 0.0 for found in told)
    assert told[-1].outcomes.total() <= told[-1].sent <= len(read_records(directory))
    facts = directory.metadata()
    assert facts["interrupted"] is False
    assert facts["server_metrics_error"] == ""
    assert facts["deployment"]["model"] == "ensemble"
    assert facts["versions"].keys() >= {"python", "locust", "gevent", "inflight"}
    assert facts["began"] <= facts["ended"]
    assert facts["machine"]["cores"] >= 1
    moments = [sample["moment"] for sample in directory.server_samples()]
    assert (moments[0], moments[-1]) == ("before", "after")
