from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.analysis.comparison.bootstrap import interval
from loadtests.analysis.comparison.compare import compare
from loadtests.analysis.comparison.result import Change, ChangeVerdict, Comparison
from loadtests.analysis.comparison.side import PooledValues, length_of_blocks, resampled_percentiles
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.load_runs import OPEN_LOOP, failure, record, steady_generator, write_run
from tests.loadtests.analysis.comparison.series import autocorrelated

PLAN = LoadPlan(seconds=60, slo=("p99 ttft <= 200ms",))


def run(
    path: Path,
    seed: int,
    slower: float = 1.0,
    errors: float = 0.0,
    requests: int = 900,
    plan: LoadPlan = PLAN,
    along: float = 0.3,
    tokens: int = 10,
) -> RunDirectory:
    """Answers of ten responses whose latencies vary by a fifth; `along` says how much neighbours hang together."""
    random = np.random.default_rng(seed)
    noise = slower * np.exp(0.2 * autocorrelated(requests, along, random))
    due = np.sort(random.uniform(0, 59, requests)).tolist()
    failed = random.random(requests) < errors
    records: list[RequestRecord] = []
    for i in range(requests):
        gaps = (0.02 * noise[i] * np.exp(0.1 * random.normal(size=9))).tolist()
        one = record(i, due[i], ttft=float(0.1 * noise[i]), gaps=gaps, output_tokens=tokens)
        records.append(failure(i, due[i], "overloaded", RequestOutcome.REJECTED) if failed[i] else one)
    return write_run(path, records, plan, generator=steady_generator(60, requests))


def changes(found: Comparison) -> dict[str, Change]:
    return {change.metric: change for change in found.changes}


def test_runs_with_other_tokens_per_response_are_compared_by_tpot(tmp_path: Path) -> None:
    one, same, eight = (
        run(tmp_path / f"{n}-{tokens}", n, requests=300, tokens=tokens) for n, tokens in ((1, 10), (2, 11), (3, 80))
    )
    assert any("compare TPOT" in warning for warning in compare([one], [eight]).warnings)
    assert not any("compare TPOT" in warning for warning in compare([one], [same]).warnings)


def test_ten_percent_are_found_and_called_a_regression(tmp_path: Path) -> None:
    found = compare([run(tmp_path / "a", 1)], [run(tmp_path / "b", 2, slower=1.1)], 0.03)
    by_name = changes(found)
    for metric in ("p50 ttft", "p50 itl", "p50 tpot", "p50 e2e"):
        change = by_name[metric]
        assert change.low is not None
        assert change.high is not None
        assert change.low <= 1.1 <= change.high
        assert change.verdict is ChangeVerdict.WORSE
    assert {"p50 itl", "p50 tpot"} <= {change.metric for change in found.regressions}
    assert by_name["throughput"].verdict is ChangeVerdict.NOT_SHOWN
    assert by_name["error_rate"].change == 0


def test_the_same_runs_and_seed_give_the_same(tmp_path: Path) -> None:
    sides = [run(tmp_path / "a", 1, requests=300)], [run(tmp_path / "b", 2, requests=300)]
    assert compare(*sides) == compare(*sides)
    assert compare(*sides) != compare(*sides, seed=1)


def test_errors_are_compared_in_points_also_where_there_were_none(tmp_path: Path) -> None:
    before, after = run(tmp_path / "a", 1), run(tmp_path / "b", 2, errors=0.05)
    worse = changes(compare([before], [after]))["error_rate"]
    assert (worse.relative, worse.before, worse.verdict, worse.regression) == (False, 0.0, ChangeVerdict.WORSE, True)
    assert worse.low is not None
    assert 0.01 < worse.low < 0.05
    same = changes(compare([before], [before]))["error_rate"]
    assert same.verdict is ChangeVerdict.NOT_SHOWN
    assert same.high is not None
    assert 0 < same.high < 0.01, "that none was seen does not say that there is none"


def test_goodput_is_compared_where_both_promised_the_same(tmp_path: Path) -> None:
    before, after = run(tmp_path / "a", 1), run(tmp_path / "b", 2, slower=1.6)
    assert changes(compare([before], [after]))["goodput"].regression
    other = run(tmp_path / "c", 2, plan=PLAN.model_copy(update={"slo": ("p99 ttft <= 1s",)}))
    found = compare([before], [other])
    assert "goodput" not in changes(found)
    assert not found.plans_differ
    assert any("different SLOs" in warning for warning in found.warnings)


def test_too_few_requests_are_told_and_no_regression(tmp_path: Path) -> None:
    sides = [run(tmp_path / "a", 1, requests=40)], [run(tmp_path / "b", 2, slower=2, requests=40)]
    found = compare(*sides)
    p99 = changes(found)["p99 ttft"]
    assert (p99.verdict, p99.low, p99.regression) == (ChangeVerdict.TOO_FEW, None, False)
    assert p99.change == pytest.approx(2, rel=0.5)
    assert "40 samples before are too few for a p99 ttft; at least 299 are needed" in p99.note
    assert any("too little was measured to judge p99 ttft" in warning for warning in found.warnings)
    assert changes(found)["p50 ttft"].regression


def test_what_was_not_measured_has_no_change(tmp_path: Path) -> None:
    other = write_run(tmp_path / "b", [record(i, i, chunks=(), ended=i + 0.5) for i in range(30)], PLAN)
    change = changes(compare([run(tmp_path / "a", 1, requests=50)], [other]))["p50 ttft"]
    assert (change.after, change.change, change.verdict) == (None, None, ChangeVerdict.TOO_FEW)
    assert "not measured on both sides" in change.note


@pytest.mark.parametrize("asked", [0, 600])
def test_a_side_that_completes_nothing_any_more_is_a_regression_in_all_that_was_there(
    tmp_path: Path, asked: int
) -> None:
    before = run(tmp_path / "a", 1, requests=600)
    nothing = [failure(i, i * 0.1, "server_unreachable") for i in range(asked)]
    found = compare([before], [write_run(tmp_path / "b", nothing, PLAN, generator=steady_generator(60, asked))])
    by_name = changes(found)
    gone = [f"{level} {latency}" for latency in ("ttft", "itl", "tpot", "e2e") for level in ("p50", "p99")]
    for metric in [*gone, "throughput"]:
        change = by_name[metric]
        assert (change.verdict, change.regression, change.low) == (ChangeVerdict.WORSE, True, None), metric
        assert change.note == "nothing was completed after"
    assert by_name["throughput"].after == 0
    back = compare([write_run(tmp_path / "c", nothing, PLAN)], [before])
    assert {change.metric for change in back.regressions} == set(), "what was not there before can't be worse"


def test_requests_that_hang_together_must_be_many(tmp_path: Path) -> None:
    """Runs of which stretches are slow say little of the next stretch."""
    before, after = (run(tmp_path / str(seed), seed, requests=320, along=0.9) for seed in (1, 2))
    found = changes(compare([before], [after]))["p50 ttft"]
    assert (found.verdict, found.low, found.regression) == (ChangeVerdict.TOO_FEW, None, False)
    assert "320 requests before are too few: neighbours within" in found.note
    assert "are correlated, so about" in found.note
    before, after = (run(tmp_path / str(seed), seed, requests=320) for seed in (3, 4))
    assert changes(compare([before], [after]))["p50 ttft"].verdict is ChangeVerdict.NOT_SHOWN


def test_nothing_is_a_multiple_of_no_tokens_at_all(tmp_path: Path) -> None:
    nothing = write_run(tmp_path / "a", [failure(i, i, "overloaded", RequestOutcome.REJECTED) for i in range(40)], PLAN)
    found = changes(compare([nothing], [run(tmp_path / "b", 1, requests=40)]))
    throughput = found["throughput"]
    assert (throughput.before, throughput.change, throughput.verdict) == (0.0, None, ChangeVerdict.TOO_FEW)
    assert "there is no relative change" in throughput.note
    assert found["error_rate"].verdict is ChangeVerdict.BETTER


@pytest.mark.parametrize(
    ("difference", "says", "judged"),
    [
        ({"sessions": 5000}, "sessions none and 5000", True),
        ({"arrivals": OPEN_LOOP}, "arrivals.kind users and rate, arrivals.profile 8 and 1", False),
        ({"workload": WorkloadSpec(output_tokens="16")}, "workload.output_tokens 64 and 16", False),
    ],
)
def test_different_plans_are_told_and_unlike_ones_not_judged_unless_that_is_asked_for(
    tmp_path: Path, difference: dict[str, Any], says: str, judged: bool
) -> None:
    before = run(tmp_path / "a", 1, requests=300)
    after = run(tmp_path / "b", 2, slower=2.0, requests=300, plan=PLAN.model_copy(update=difference))
    found = compare([before], [after])
    assert any("have different plans" in warning and says in warning for warning in found.warnings)
    assert (bool(found.regressions), not found.plans_differ) == (judged, judged)
    if not judged:
        assert {change.verdict for change in found.changes} == {ChangeVerdict.DIFFERENT_PLANS}
    allowed = compare([before], [after], allow_different_plans=True)
    assert (bool(allowed.regressions), allowed.plans_differ) == (True, False)


def test_a_tokenizer_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    runs = []
    for name, digest in (("a", "1"), ("b", "1"), ("c", "2")):
        runs.append(run(tmp_path / name, 1, plan=PLAN.model_copy(update={"workload": WorkloadSpec(tokenizer=name)})))
        runs[-1].write_metadata({"tokenizer": digest})
    one, moved, other = runs
    assert not compare([one], [moved]).plans_differ
    assert compare([one], [other]).plans_differ


def test_another_address_seed_or_price_is_no_other_plan(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"server": "elsewhere:1", "seed": 5, "price_per_hour": 2.0, "model": "other"})
    found = compare([run(tmp_path / "a", 1)], [run(tmp_path / "b", 2, plan=plan)])
    assert len(found.warnings) == 1
    assert "one side is a single run" in found.warnings[0]


def test_a_run_that_was_not_on_schedule_is_told(tmp_path: Path) -> None:
    late = write_run(
        tmp_path / "b", [record(i, i, sent=i + 0.5) for i in range(60)], LoadPlan(seconds=60, arrivals=OPEN_LOOP)
    )
    found = compare([late], [late])
    assert f"{late.path} is unreliable: 1% of requests were sent at least 500 ms" in found.warnings[0]


def test_how_much_runs_differ_by_themselves_counts(tmp_path: Path) -> None:
    """Runs of which each is slow or fast as a whole show nothing, though any two of them would."""
    speeds = (1.0, 1.15, 0.9, 1.05, 1.2, 0.95)
    runs = [run(tmp_path / str(i), i, slower=speed, requests=300) for i, speed in enumerate(speeds)]
    assert changes(compare([runs[0]], [runs[1]]))["p50 itl"].verdict is ChangeVerdict.WORSE
    found = compare(runs[:3], runs[3:])
    change = changes(found)["p50 itl"]
    assert change.verdict is ChangeVerdict.NOT_SHOWN
    assert change.samples_before == 3 * 300 * 9
    assert found.warnings == ()


def alarms(times: int, n: int, phi: float, slower: float = 1.0, level: float = 0.5, limit: float = 1.0) -> float:
    """In what share of simulated comparisons the interval lies beyond the limit, or below it where that is 1."""
    random = np.random.default_rng([times, n, round(10 * phi)])
    found = 0
    for _ in range(times):
        sides: list[PooledValues] = []
        for speed in (1.0, slower):
            values = speed * np.exp(0.3 * autocorrelated(n, phi, random))
            sides.append(PooledValues(values, np.arange(n), n))
        before, after = (
            resampled_percentiles([side], (level,), length_of_blocks([side], (level,)), 200, random)[level]
            for side in sides
        )
        ratio = _log_ratio(sides, level)
        low, high = interval(ratio, np.log(after / before), 0.95, 0)
        found += low > np.log(limit) or (limit == 1 and high < 0)
    return found / times


def _log_ratio(sides: Sequence[PooledValues], level: float) -> float:
    before, after = (float(np.quantile(side.values, level)) for side in sides)
    return float(np.log(after / before))


# Of 60 comparisons without a change 3 should be called one; more than 8 would be by chance once in 200 times.
@pytest.mark.parametrize(("n", "phi", "level"), [(400, 0.0, 0.5), (400, 0.5, 0.5), (400, 0.0, 0.99)])
def test_no_change_is_seldom_called_one(n: int, phi: float, level: float) -> None:
    assert alarms(60, n, phi, level=level) <= 8 / 60


def test_ten_percent_of_enough_requests_are_nearly_always_found() -> None:
    assert alarms(30, 1500, 0.3, slower=1.1) >= 0.9
    assert alarms(30, 1500, 0.3, slower=1.1, limit=1.03) >= 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "phi", "level", "most"),
    [
        *((1000, 0.0, 0.5, 0.085), (1000, 0.0, 0.99, 0.10), (1000, 0.5, 0.5, 0.085), (1000, 0.5, 0.99, 0.10)),
        # A hundred requests that hang together are as good as five.
        *((1000, 0.9, 0.5, 0.16), (3000, 0.9, 0.5, 0.12), (3000, 0.9, 0.99, 0.12)),
    ],
)
def test_false_alarms_thoroughly(n: int, phi: float, level: float, most: float) -> None:
    assert 0.01 <= alarms(250, n, phi, level=level) <= most
