from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.tune.page import frontier, tune_page
from inflight.tune.results import EQUAL_TOKENS, GAP, AloneTrial, Quality, ServedTrial, TuneResult
from inflight.tune.settings import EngineBuild, Settings

BUILD = EngineBuild("int8", "u8")


def served(speed: float, latency: float, *, tokens: int = 96, meets_slo: bool | None = None) -> ServedTrial:
    latencies = {"ttft": latency, "tpot": latency / 10, "itl": latency / 10}
    slo = {} if meets_slo is None else {"p99 ttft <= 1s": "met"}
    return ServedTrial(Settings(BUILD, tokens), speed, 1.0, latencies, latencies, 10, 0, meets_slo, slo, "runs/x")


@given(st.lists(st.tuples(st.floats(1, 1e3), st.floats(1e-3, 10)), min_size=1))
def test_no_trial_beats_one_of_the_frontier_and_each_other_one_is_beaten(points: list[tuple[float, float]]) -> None:
    trials = [served(*point, tokens=number) for number, point in enumerate(points, 1)]
    best = frontier(trials, "ttft")
    assert [trial.tokens_per_second for trial in best] == sorted({trial.tokens_per_second for trial in best})
    for trial in trials:
        as_good = [
            other
            for other in best
            if other.tokens_per_second >= trial.tokens_per_second and other.p99["ttft"] <= trial.p99["ttft"]
        ]
        assert as_good, trial
        if trial in best:
            assert as_good == [trial]


@pytest.mark.parametrize(
    ("figures", "shown"),
    [({EQUAL_TOKENS: 0.25, GAP: 0.012}, ("25.0%", "0.0120")), ({"bleu": 31.25, "exact": None}, ("31.2500", "bleu"))],
)
def test_the_page_shows_all_candidates_and_their_quality(
    figures: dict[str, float | None], shown: tuple[str, ...]
) -> None:
    best, other = served(450, 0.5, tokens=96, meets_slo=True), served(500, 2.0, tokens=256, meets_slo=False)
    alone = [AloneTrial(trial.settings, 6.0, 510.0, 0.1) for trial in (best, other)]
    result = TuneResult(alone, [best, other], [Quality(BUILD, figures)], best, "engines/x", 90.0)
    page = tune_page(result, "<script>hostile</script>")
    assert "<script>hostile" not in page
    for trial in (best, other):
        assert str(trial.settings) in page
    for figure in ("450", "500", "missed", *shown):
        assert figure in page
