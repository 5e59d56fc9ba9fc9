"""NVIDIA's perf_analyzer, which shares no code with us, measures the same as we do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.load import perf_analyzer
from benchmarks.load.agreement import AgreementLoad, compare
from tests.standins.timed_server.server import TimedServer, timed_server

TTFT, ITL, TOKENS = 0.5, 0.1, 6
USERS = AgreementLoad("users", 8, "tea", TOKENS, TTFT + (TOKENS - 1) * ITL, warmup=1.5, seconds=6.0)
LOADS = [USERS, replace(USERS, kind="rate")]


@pytest.fixture(scope="module")
def server() -> Iterator[TimedServer]:
    with timed_server(ensemble=f"ttft={TTFT} itl={ITL}") as running:
        yield running


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.kind)
def test_another_tool_finds_the_same_throughput_and_time_to_the_first_token(
    server: TimedServer, load: AgreementLoad
) -> None:
    try:
        program = perf_analyzer.install()
    except perf_analyzer.PerfAnalyzerMissingError as error:
        pytest.skip(str(error))
    found = compare(server.grpc_address, program, load, 1, print)
    assert found.throughput.met
    assert found.ttft.met
    assert found.pairs[0][0].ttft_p50 == pytest.approx(TTFT, rel=0.05)
