"""A server that stalls for a second: an open loop shows it, as those who come meanwhile wait; a closed one hides
it, as its users don't come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtests.plan import Arrivals, LoadPlan
from loadtests.workloads.spec import WorkloadSpec
from tests.loadtests.truth.run_load import LoadRun, run_together, write_prompts
from tests.standins.timed_server.server import TimedServer, timed_server

pytestmark = pytest.mark.alone

TTFT = 0.03
RATE = 20
SECONDS = 7
STALLS = {"opened": 60, "closed": 15}
"""The session with which the second begins for which the server stalls. A closed loop gets there as fast as the
machine answers, so there it is an early one."""
LOOPS = {
    "opened": Arrivals(kind="rate", profile=str(RATE), process="constant"),
    "closed": Arrivals(kind="users", profile="1"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadRun]:
    place = tmp_path_factory.mktemp("stall")
    with timed_server(**dict.fromkeys(LOOPS, "")) as server:
        plans = [plan(server, name, place) for name in LOOPS]
        return dict(zip(LOOPS, run_together(plans, place), strict=True))


def plan(server: TimedServer, name: str, place: Path) -> LoadPlan:
    prompts = ((f"ttft={TTFT} stall={int(number == STALLS[name])}", 1) for number in range(500))
    return LoadPlan(
        server=server.grpc_address,
        metrics_url=server.metrics_url,
        model=name,
        workload=WorkloadSpec(prompts=write_prompts(place / f"{name}.jsonl", prompts)),
        arrivals=LOOPS[name],
        seconds=SECONDS,
    )


def test_an_open_loop_shows_a_second_in_which_the_server_stands_still(runs: dict[str, LoadRun]) -> None:
    """Who was due during that second waited for its end; who was due just before it waited for all of it.

    How much longer they waited on a busy machine is its own matter; `test_known_delays` bounds figures from both sides.
    """
    due = np.arange(RATE * SECONDS) / RATE
    until = STALLS["opened"] / RATE + 1
    waits = np.where((due > until - 1 - TTFT) & (due < until), np.minimum(until - due, 1.0), 0.0)
    ttft = runs["opened"].summary.latencies["ttft"]
    assert ttft.count == len(due)
    for name, percentile in (("p90", 90), ("p95", 95), ("p99", 99)):
        least = float(np.percentile(waits + TTFT, percentile))
        assert getattr(ttft, name) >= least * 0.98
    assert ttft.p50 < ttft.p90


def test_a_closed_loop_hides_it_where_the_open_one_shows_it(runs: dict[str, LoadRun]) -> None:
    """The one request of its user that met that second is the slowest, and few others could be."""
    ttft = runs["closed"].summary.latencies["ttft"]
    assert ttft.count > 20  # so that one of them is no p95
    assert ttft.max > 1.0
    assert ttft.p95 < runs["opened"].summary.latencies["ttft"].p95
