"""The server dies in the middle of a run, or has no room: the run goes on to its end, and the records say it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from loadtests.analysis.summarize import summarize
from loadtests.plan import Arrivals, LoadPlan
from loadtests.record import RequestOutcome
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.engines import TinyEngine
from tests.fixtures.load_generator import TIMEOUT, generator_command, has_reported, running_generator
from tests.fixtures.server import STEP_SECONDS, fake_engine
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_server_that_is_killed_is_in_the_records_and_the_run_goes_on(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    parameters = fake_engine(step_seconds=STEP_SECONDS)
    with Server(tiny_engine("llama"), DeploymentOptions(parameters=parameters)) as server:
        plan = LoadPlan(
            server=server.grpc_address,
            workload=WorkloadSpec(input_tokens="6", output_tokens="20"),
            arrivals=Arrivals(kind="rate", profile="10", process="constant"),
            seconds=8.0,
            drain_seconds=2.0,
        )
        directory = RunDirectory.create(tmp_path / "run")
        with running_generator(generator_command(directory, plan), tmp_path / "said") as process:
            wait_until(lambda: has_reported(directory), "a record")
            os.kill(server.pid, signal.SIGKILL)
            assert process.wait(TIMEOUT) == 0, (tmp_path / "said").read_text()
    records = directory.records()
    assert len(records) == 80
    codes = {record.code for record in records if record.outcome is RequestOutcome.FAILED}
    assert "server_gone" in codes
    assert codes <= {"server_gone", "server_unreachable", "server_not_ready"}
    assert {record.outcome for record in records} <= {
        RequestOutcome.COMPLETED,
        RequestOutcome.FAILED,
        RequestOutcome.UNFINISHED,
    }
    summary = summarize(directory)
    assert summary.requests.errors["server_gone"] > 0
    assert 0 < summary.requests.error_rate < 1


def test_requests_without_room_are_rejected(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    parameters = fake_engine(step_seconds=STEP_SECONDS)
    options = DeploymentOptions(max_num_sequences=1, max_queue_size=2, parameters=parameters)
    with Server(tiny_engine("llama"), options) as server:
        plan = LoadPlan(
            server=f"http://{server.http_address}",
            workload=WorkloadSpec(input_tokens="6", output_tokens="50"),
            arrivals=Arrivals(kind="rate", profile="10", process="constant"),
            seconds=2.0,
            timeout=30.0,
        )
        directory = RunDirectory.create(tmp_path / "run")
        with running_generator(generator_command(directory, plan, workers=2), tmp_path / "said") as process:
            assert process.wait(TIMEOUT) == 0, (tmp_path / "said").read_text()
    records = directory.records()
    assert len(records) == 20
    rejected = [record for record in records if record.outcome is RequestOutcome.REJECTED]
    assert {record.code for record in rejected} == {"overloaded"}
    assert {record.outcome for record in records} == {RequestOutcome.COMPLETED, RequestOutcome.REJECTED}
    assert summarize(directory).requests.rejected == len(rejected)
