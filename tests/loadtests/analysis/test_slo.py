from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from loadtests import mlperf
from loadtests.analysis.slo import Slo, parse_slos
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Cost, SloResult
from loadtests.errors import LoadError
from loadtests.plan import Arrivals, LoadPlan
from loadtests.record import RequestOutcome
from tests.fixtures.engines import ROOT
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import failure, record, write_run


def judged(tmp_path: Path, text: str, requests: int = 100) -> SloResult:
    """Of a run with TTFTs of 1, 2, 3, ... ms."""
    records = [record(i, i * 0.01, ttft=0.001 * (i + 1)) for i in range(requests)]
    (bound,) = summarize(write_run(tmp_path / "run", records, LoadPlan(seconds=60, slo=(text,)))).slo
    return bound


@pytest.mark.parametrize(
    ("text", "found", "kept"),
    [
        ("p99 ttft <= 500ms", 0.09901, True),
        ("p99 ttft<=0.099s", 0.09901, False),
        ("p50 ttft < 50.5ms", 0.0505, False),
        ("p50 ttft <= 51 ms", 0.0505, True),
        ("mean ttft <= 51ms", 0.0505, True),
        ("max ttft_sent <= 100ms", 0.1, True),
        ("p0 ttft <= 1ms", 0.001, True),
        ("p99.9 ttft <= 1s", 0.099901, True),
        ("  p99   e2e <  3s ", 0.10901, True),
        ("p95 tpot <= 9ms", 0.01, False),
        ("error_rate <= 1%", 0.0, True),
        ("error_rate < 0%", 0.0, False),
    ],
)
def test_a_bound_is_kept_or_not(tmp_path: Path, text: str, found: float, kept: bool) -> None:
    bound = judged(tmp_path, text)
    assert bound.value == pytest.approx(found)
    assert bound.met is kept
    assert bound.text == " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        *("", "fast", "p99 ttft", "p99 ttft <= 500", "p99 ttft <= 500us", "p99 ttft >= 500ms", "p99 ttft == 500ms"),
        *(
            "ttft <= 500ms",
            "p101 ttft <= 1s",
            "p999 ttft <= 1s",
            "p99 speed <= 1s",
            "p99 ttft <= -1s",
            "p99 ttft <= 5%",
        ),
        *("p99 error_rate <= 1%", "error_rate <= 1s", "error_rate <= 1", "p99 ttft <= nans", "mean <= 1s"),
    ],
)
def test_what_is_no_bound_is_refused_with_a_sentence_that_shows_how(text: str) -> None:
    with raises(LoadError, "invalid_parameter", naming=(repr(text), "`p99 ttft <= 500ms`")):
        Slo.parse(text)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("mlperf:llama3.1-8b-interactive", ["p99 ttft <= 500ms", "p99 tpot <= 30ms"]),
        (" mlperf:gpt-oss-120b", ["p99 ttft <= 3000ms", "p99 tpot <= 80ms"]),
    ],
)
@pytest.mark.parametrize(("arrivals", "seconds", "notes"), [("rate", 600, 0), ("rate", 60, 1), ("users", 600, 1)])
def test_a_benchmark_of_mlperf_has_its_limits_and_its_scenario(
    tmp_path: Path, name: str, bounds: list[str], arrivals: Any, seconds: int, notes: int
) -> None:
    plan = LoadPlan(seconds=seconds, slo=(name,), arrivals=Arrivals(kind=arrivals, profile="4"))
    found = summarize(write_run(tmp_path / "run", [record(i, i, ttft=0.4) for i in range(0, seconds, 5)], plan))
    assert [bound.text for bound in found.slo] == bounds
    assert len([note for note in found.validity.notes if "at least 600 s" in note]) == notes


def test_the_table_in_the_docs_is_that_of_the_presets() -> None:
    text = (ROOT / "docs" / "load-tests.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(\S+)` \| (\d+) ms \| (\d+) ms \| (?:(\d+) ms)? ?\| (?:(\d+) ms)? ?\|$", text, re.MULTILINE
    )
    shown = {name + end: limits for name, *own in rows for end, limits in (("", own[:2]), ("-interactive", own[2:]))}
    found = {name: re.findall(r"(\d+)ms", " ".join(mlperf.bounds(name) or ())) for name in mlperf.NAMES}
    assert {name: limits for name, limits in shown.items() if all(limits)} == found


def test_a_benchmark_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with raises(LoadError, "invalid_parameter", naming=("mlperf:llama4", "llama3.1-8b-interactive")):
        parse_slos(["p99 ttft <= 1s", "mlperf:llama4"])


@pytest.mark.parametrize(
    ("text", "requests", "least"),
    [
        ("p99 ttft <= 9s", 298, 299),
        ("p99 ttft <= 9s", 299, None),
        ("p95 ttft <= 9s", 58, 59),
        ("p95 ttft <= 9s", 59, None),
        ("p50 ttft <= 9s", 20, None),
        ("mean ttft <= 9s", 2, None),
        ("error_rate <= 1%", 20, 299),
        ("error_rate <= 1%", 299, None),
    ],
)
def test_too_few_samples_are_told(tmp_path: Path, text: str, requests: int, least: int | None) -> None:
    bound = judged(tmp_path, text, requests)
    assert bound.samples == requests
    assert bound.met
    assert bound.note == (
        f"{requests} requests are too few for 95% confidence; at least {least} are needed" if least else ""
    )


def test_many_gaps_of_few_requests_are_few(tmp_path: Path) -> None:
    records = [record(i, i * 0.1, gaps=[0.01] * 50) for i in range(6)]
    (bound,) = summarize(write_run(tmp_path / "run", records, LoadPlan(slo=("p99 itl <= 20ms",)))).slo
    assert (bound.samples, bound.note) == (
        300,
        "6 requests with gaps are too few for 95% confidence; at least 299 are needed",
    )


def test_a_percentile_is_of_the_lost_requests_too(tmp_path: Path) -> None:
    """Of 1 to 600 ms and 400 that never got there; of the survivors alone the median is 300.5 ms."""
    records = [record(i, i * 0.01, ttft=0.001 * (i + 1)) for i in range(600)]
    records += [failure(i, i * 0.01, "overloaded", RequestOutcome.REJECTED) for i in range(600, 1000)]
    texts = ("p50 ttft <= 400ms", "p50 e2e <= 400ms", "p25 ttft <= 300ms")
    bounds = summarize(write_run(tmp_path / "run", records, LoadPlan(seconds=60, slo=texts))).slo
    assert [bound.value for bound in bounds] == pytest.approx([0.5005, 0.5105, 0.25075])
    assert [bound.met for bound in bounds] == [False, False, True]


INFINITE = "620 of 1000 requests have no value and count as infinitely late"
LOST = {
    "overloaded": RequestOutcome.REJECTED,
    "timed_out": RequestOutcome.TIMED_OUT,
    "engine_died": RequestOutcome.FAILED,
    "over": RequestOutcome.UNFINISHED,
}


def with_lost(tmp_path: Path, text: str, good: int, lost: int, **values: Any) -> SloResult:
    """So many with a TTFT of 0.1 s, a TPOT of 10 ms and an end after 0.11 s; of the lost ones some left."""
    codes = list(LOST.items())
    records = [record(i, i * 0.01, **values) for i in range(good)]
    for i in range(lost):
        code, outcome = codes[i % len(codes)]
        records.append(failure(good + i, i * 0.01, code, outcome))
    left = [failure(good + lost + i, 0.5, "", RequestOutcome.CANCELLED) for i in range(50)]
    plan = LoadPlan(seconds=60, slo=(text,))
    (bound,) = summarize(write_run(tmp_path / "run", [*records, *left], plan)).slo
    return bound


@pytest.mark.parametrize(
    ("text", "good", "lost", "value", "samples", "note"),
    [
        *(
            (f"p99 {quantity} <= 2s", 380, 620, None, 1000, INFINITE)
            for quantity in ("ttft", "ttft_sent", "e2e", "e2e_sent", "tpot")
        ),
        ("mean ttft <= 2s", 30, 20, 0.1, 30, "the mean excludes 20 requests without a value"),
        ("p99 itl <= 2s", 300, 200, 0.01, 300, ""),  # gaps are those that there are
    ],
)
def test_a_request_that_never_got_there_is_infinitely_late_but_in_means_and_gaps(
    tmp_path: Path, text: str, good: int, lost: int, value: float | None, samples: int, note: str
) -> None:
    bound = with_lost(tmp_path, text, good, lost)
    assert bound.value == (value if value is None else pytest.approx(value))
    assert (bound.met, bound.samples, bound.note) == (value is not None, samples, note)


@pytest.mark.parametrize(
    ("text", "lost", "kept"),
    [
        ("p99 ttft <= 100ms", 10, True),
        ("p99 ttft <= 100ms", 11, False),
        ("p99.9 ttft <= 100ms", 1, True),
        ("p99.9 ttft <= 100ms", 2, False),
        ("p50 ttft <= 100ms", 500, True),
        ("p50 ttft <= 100ms", 501, False),
        ("max ttft <= 100ms", 1, False),
        ("max ttft <= 100ms", 0, True),
    ],
)
def test_a_percentile_holds_for_its_share_of_all_requests(tmp_path: Path, text: str, lost: int, kept: bool) -> None:
    bound = with_lost(tmp_path, text, 1000 - lost, lost)
    assert bound.met is kept
    assert bound.value == (pytest.approx(0.1) if kept else None)


def test_an_answer_of_one_token_has_no_time_per_token_and_is_not_lost(tmp_path: Path) -> None:
    bound = with_lost(tmp_path, "max tpot <= 2s", 30, 0, gaps=())
    assert (bound.value, bound.samples, bound.note) == (None, 0, "nothing was measured")
    records = [record(0, 0.0), record(1, 0.1, gaps=())]
    (bound,) = summarize(write_run(tmp_path / "other", records, LoadPlan(slo=("max tpot <= 2s",)))).slo
    assert (bound.met, bound.samples) == (True, 1)


def test_goodput_is_of_all_that_were_due_and_of_those_that_were_completed(tmp_path: Path) -> None:
    records = [
        *(record(i, i, ttft=0.1) for i in range(4)),
        record(4, 4, ttft=0.9),
        failure(5, 5, "overloaded", RequestOutcome.REJECTED),
        failure(6, 6, "engine_died"),
        failure(7, 7, "", RequestOutcome.CANCELLED),
    ]
    found = summarize(write_run(tmp_path / "run", records, LoadPlan(seconds=10, slo=("p99 ttft <= 500ms",)))).goodput
    assert found is not None
    assert (found.good, found.per_second) == pytest.approx((4, 0.4))
    assert found.of_sent == pytest.approx(4 / 7), "whose client left as planned is no bad one"
    assert found.of_completed == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (("p50 ttft <= 200ms", "p99 ttft <= 1s"), 3),  # the wider limit judges
        (("p99 ttft <= 1s", "p99 itl <= 50ms"), 2),  # by the mean of a request's gaps
        (("max tpot <= 40ms",), 2),  # the one with a single response can't be too slow between tokens
        (("mean e2e < 310ms",), 2),
        (("p99 ttft < 100ms",), 0),
        (("p99 ttft <= 100ms",), 2),
    ],
)
def test_each_request_is_judged_by_the_limits(tmp_path: Path, slo: tuple[str, ...], good: int) -> None:
    records = [
        record(0, 0, ttft=0.1, gaps=(0.01, 0.07)),
        record(1, 0, ttft=0.1, gaps=(), chunks=(0.1,), ended=0.1, output_tokens=1),
        record(2, 0, ttft=0.4, gaps=(0.06, 0.06)),
    ]
    found = summarize(write_run(tmp_path / "run", records, LoadPlan(slo=slo))).goodput
    assert found is not None
    assert found.good == good


def test_whole_answers_are_never_good_where_the_first_token_is_promised(tmp_path: Path) -> None:
    records = [record(0, 0, chunks=(), ended=0.5)]
    for number, (slo, good) in enumerate([("p99 ttft <= 1s", 0), ("p99 e2e <= 1s", 1)]):
        found = summarize(write_run(tmp_path / str(number), records, LoadPlan(slo=(slo,)))).goodput
        assert found is not None
        assert found.good == good


def test_what_a_million_tokens_cost(tmp_path: Path) -> None:
    # 36 an hour are 0.1 in 10 seconds, for 4 and 6 good tokens and 2 that were too late; 30 went in.
    records = [
        record(0, 0, gaps=[0.01] * 3),
        record(1, 1, gaps=[0.01] * 5),
        record(2, 2, ttft=2.0),
        failure(3, 3, "engine_died", chunks=(3.1, 3.2), output_tokens=2),
    ]
    plan = LoadPlan(seconds=10, slo=("p99 ttft <= 1s",), price_per_hour=36, currency="EUR")
    found = summarize(write_run(tmp_path / "run", records, plan)).cost
    assert isinstance(found, Cost)
    assert found.currency == "EUR"
    assert found.per_million_output == pytest.approx(0.1 / 12 * 1e6)
    assert found.per_million_total == pytest.approx(0.1 / 42 * 1e6)
    assert found.per_million_good_output == pytest.approx(0.1 / 10 * 1e6)


def test_the_price_of_all_tokens_is_unknown_where_the_server_counts_no_input(tmp_path: Path) -> None:
    plan = LoadPlan(seconds=10, price_per_hour=36)
    found = summarize(write_run(tmp_path / "run", [record(0, 0, input_tokens=None)], plan)).cost
    assert isinstance(found, Cost)
    assert (found.per_million_total, found.per_million_good_output) == (None, None)
    assert found.per_million_output is not None


def test_without_a_limit_for_latencies_or_a_price_nobody_says_what_is_good_or_costs(tmp_path: Path) -> None:
    found = summarize(write_run(tmp_path / "run", [record(0, 0)], LoadPlan(slo=("error_rate <= 1%",))))
    assert (found.goodput, found.cost) == (None, None)
