"""What the conductor makes of a generator that fails, and what it writes of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from inflight.deploy.server import Server
from loadtests.conductor import Progress, make_run
from loadtests.errors import LoadError
from loadtests.plan import Plan
from loadtests.run_directory import RunDirectory
from loadtests.team import Team
from loadtests.workloads.spec import WorkloadSpec


def plan(server: Server, **values: object) -> Plan:
    workload = WorkloadSpec(input_tokens="6", output_tokens="4")
    page = f"http://{server.metrics_address}/metrics"
    given = {"address": server.grpc_address, "metrics_url": page, "workload": workload, "seconds": 1.0, **values}
    return Plan.model_validate(given)


def test_a_generator_that_dies_at_once_is_told(
    paced_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    directory = RunDirectory.make(tmp_path / "run")
    with pytest.raises(LoadError) as raised:
        make_run(plan(paced_server), directory, Team(), lambda found: None)
    assert (str(raised.value), raised.value.code) == (
        "the load generator ended with exit code 1: it said nothing",
        "load_failed",
    )


def test_what_a_generator_says_is_the_error(paced_server: Server, tmp_path: Path) -> None:
    wrong = plan(paced_server, workload=WorkloadSpec(prompts="nowhere.jsonl"))
    with pytest.raises(LoadError) as raised:
        make_run(wrong, RunDirectory.make(tmp_path / "run"), Team(), lambda found: None)
    assert (str(raised.value), raised.value.code) == (
        "nowhere.jsonl can't be read: No such file or directory",
        "workload_invalid",
    )


def test_progress_and_facts_are_those_of_the_run(paced_server: Server, tmp_path: Path) -> None:
    directory = RunDirectory.make(tmp_path / "run")
    told: list[Progress] = []
    assert make_run(plan(paced_server, seconds=1.5), directory, Team(), told.append) is False
    assert told
    assert [found.t for found in told] == sorted(found.t or 0.0 for found in told)
    assert told[-1].outcomes.total() <= told[-1].sent <= len(directory.records())
    facts = directory.facts()
    assert facts["interrupted"] is False
    assert facts["no_server_metrics"] == ""
    assert facts["deployment"]["model"] == "ensemble"
    assert facts["versions"].keys() >= {"python", "locust", "gevent", "inflight"}
    assert facts["began"] <= facts["ended"]
    assert facts["machine"]["cores"] >= 1
    moments = [sample["moment"] for sample in directory.server_samples()]
    assert (moments[0], moments[-1]) == ("before", "after")
