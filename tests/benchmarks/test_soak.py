"""A short soak keeps its SLOs; on an engine that leaks on purpose, it says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.soak import SoakPlan, SoakResult, soak
from inflight.deploy.repository.configure import DeploymentOptions
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine

STEP_SECONDS = 0.05
"""32 streams make 640 tokens a second at the most, which leaves a slow machine time for the rest."""

SHORT = SoakPlan(
    seconds=60,
    peak_seconds=6,
    warm_up_seconds=20,
    in_flight=32,
    prompt_tokens=16,
    shortest=20,
    longest=40,
    killed_every_seconds=8,
    min_work=0.5,
    max_growth=0.1,
)
"""Work, which others on the machine slow down, may fall by half; memory still finds its level in so short a time."""

MOST_MIB = 4.0
"""Of growth of each process but tritonserver, which keeps a little for each client that vanishes."""


def run(engine: TinyEngine, plan: SoakPlan, **leak: int) -> SoakResult:
    options = DeploymentOptions(
        max_num_sequences=plan.in_flight,
        max_queue_size=plan.in_flight,
        parameters=fake_engine(step_seconds=STEP_SECONDS, **leak),
    )
    return soak(engine("llama"), options, plan, on_message=print)


@pytest.mark.slow
def test_a_short_soak_keeps_its_promises(tiny_engine: TinyEngine) -> None:
    verdict = run(tiny_engine, SHORT)
    assert verdict.failures == []
    assert verdict.counts["completed"] > verdict.counts["disconnected"] > 0
    assert verdict.counts["rejected"] > 0
    grown = {name: end - begin for name, (begin, end) in verdict.memory_by_process.items() if name != "tritonserver"}
    assert len(grown) > 4
    assert max(grown.values()) < MOST_MIB, grown


@pytest.mark.slow
@pytest.mark.parametrize("leak", [{"leak_bytes_per_step": 2**20}, {"leak_bytes_per_request": 2**20}])
def test_a_leak_is_reported_and_nothing_else(tiny_engine: TinyEngine, leak: dict[str, int]) -> None:
    plan = replace(SHORT, seconds=9, peak_seconds=3, warm_up_seconds=2, killed_every_seconds=3)
    verdict = run(tiny_engine, plan, **leak)
    (failure,) = verdict.failures
    assert failure.startswith("memory grew by")
