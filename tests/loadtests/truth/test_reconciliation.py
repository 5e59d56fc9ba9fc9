"""What a run counts is what the server counted, whatever became of the requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from loadtests.plan import Arrivals, LoadPlan
from loadtests.record import RequestOutcome
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import STEP_SECONDS, fake_engine
from tests.loadtests.truth.run_load import run_load, write_prompts

IN_FLIGHT = 8
LONGEST = 256
ENDS = ("stop", "length", "stop_word", "cancelled", "timed out", "engine died", "refused")
"""Each request has one of them."""


@pytest.fixture(scope="module")
def server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Room for a few answers, a queue that is soon full, and short contexts."""
    options = DeploymentOptions(
        max_num_sequences=IN_FLIGHT,
        max_queue_size=6,
        parameters=fake_engine(step_seconds=STEP_SECONDS, max_seq_len=LONGEST),
    )
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


@pytest.mark.parametrize("http", [pytest.param(False, marks=pytest.mark.slow), True], ids=["grpc", "http"])
def test_all_counts_are_the_servers_own(server: Server, tmp_path: Path, http: bool) -> None:
    """Answers to their ends, a full queue, and prompts that can't be served: each count, and each token, is equal."""
    run = run_load(plan(server, tmp_path, http, seconds=2.0), tmp_path / "run")
    assert {record.outcome for record in run.records} == {
        RequestOutcome.COMPLETED,
        RequestOutcome.REJECTED,
        RequestOutcome.FAILED,
    }
    assert {match.name for match in run.summary.reconciliation} >= {*ENDS, "requests", "input tokens", "output tokens"}
    assert {match.name: match.difference for match in run.summary.reconciliation if match.difference} == {}


@pytest.mark.parametrize("http", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["grpc", "http"])
def test_clients_that_leave_or_are_too_late_are_counted_once(server: Server, tmp_path: Path, http: bool) -> None:
    """Which end is counted of a request whose answer ends while its client leaves is up to chance; that it is one, not.

    Of the tokens the server made some more than such clients saw.
    """
    asked = plan(server, tmp_path, http, seconds=4.0, timeout=1.2, cancel_fraction=0.25, cancel_after="0.3")
    run = run_load(asked, tmp_path / "run")
    assert {record.outcome for record in run.records} == set(RequestOutcome) - {RequestOutcome.UNFINISHED}
    found = {match.name: match for match in run.summary.reconciliation}
    assert [match for match in run.summary.reconciliation if not match.consistent] == []
    # On a busy machine, a client may leave before its request has reached the server.
    assert sum(found[name].client for name in ENDS) == len(run.records)
    assert sum(found[name].server for name in ENDS) == found["requests"].server
    assert found["cancelled"].server > 0
    assert found["timed out"].server > 0
    assert found["output tokens"].server > found["output tokens"].client


@pytest.mark.parametrize("http", [pytest.param(False, marks=pytest.mark.slow), True], ids=["grpc", "http"])
def test_a_fast_server_is_counted_rightly_too(hurried_server: Server, tmp_path: Path, http: bool) -> None:
    """Steps of 1 to 5 ms, many answers of many lengths at a time, and clients that leave within them."""
    asked = plan(hurried_server, tmp_path, http, rate=80, seconds=1.5, cancel_fraction=0.25, cancel_after="0.03")
    run = run_load(asked, tmp_path / "run")
    assert {record.outcome for record in run.records} == {RequestOutcome.COMPLETED, RequestOutcome.CANCELLED}
    assert [match for match in run.summary.reconciliation if not match.consistent] == []
    whole = [record for record in run.records if record.outcome is RequestOutcome.COMPLETED]
    assert [(len(one.chunks), one.output_tokens) for one in whole] == [
        (one.max_tokens, one.max_tokens) for one in whole
    ]


def prompts() -> Iterator[tuple[str, int]]:
    """Short and long answers, and now and then a prompt that can't be served."""
    chance = random.Random(6)
    for number in range(300):
        if number % 15 == 7:
            yield "tea " * LONGEST, 8
        else:
            yield f"Tell me about tea number {number}.", chance.choice((4, 20, 40, 60))


def plan(
    server: Server,
    place: Path,
    http: bool,
    *,
    seconds: float,
    rate: float = 24,
    timeout: float = 60.0,
    **workload: object,
) -> LoadPlan:
    file = write_prompts(place / "prompts.jsonl", prompts())
    return LoadPlan(
        server=f"http://{server.http_address}" if http else server.grpc_address,
        metrics_url=f"http://{server.metrics_address}/metrics",
        workload=WorkloadSpec.model_validate({"prompts": file, **workload}),
        arrivals=Arrivals(kind="rate", profile=str(rate)),
        seconds=seconds,
        timeout=timeout,
        tenant="reconciled",
    )
