from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import CountComparison, ServerSide, Summary
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from tests.fixtures.load_runs import failure, record, write_run

MODEL = 'model="tensorrt_llm"'


def ends(**reasons: int) -> dict[str, float]:
    return {f'inflight_requests_total{{{MODEL},reason="{reason}",version="1"}}': n for reason, n in reasons.items()}


def tokens(read: int, written: int) -> dict[str, float]:
    return {
        f'nv_llm_{kind}_token_len_sum{{{MODEL},response_metric_type="total_{kind}_tokens",version="1"}}': float(number)
        for kind, number in (("input", read), ("output", written))
    }


def runs_of(model: str, success: int, failed: int = 0) -> dict[str, float]:
    return {
        f'nv_inference_request_success{{model="{model}",version="1"}}': success,
        f'nv_inference_request_failure{{model="{model}",reason="OTHER",version="1"}}': failed,
    }


def gauges(scheduled: float, waiting: float, fraction: float) -> dict[str, float]:
    return {
        f'nv_trt_llm_request_metrics{{{MODEL},request_type="scheduled",version="1"}}': scheduled,
        f'nv_trt_llm_request_metrics{{{MODEL},request_type="waiting",version="1"}}': waiting,
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="fraction",{MODEL},version="1"}}': fraction,
    }


def at(t: float, *pages: dict[str, float], moment: str = "during") -> dict[str, Any]:
    return {"t": t, "moment": moment, "values": {key: value for page in pages for key, value in page.items()}}


def whole(before: dict[str, float], after: dict[str, float]) -> list[dict[str, Any]]:
    return [at(-1, before, moment="before"), at(20, after, moment="after")]


def summary(
    path: Path, server: list[dict[str, Any]], records: list[RequestRecord] | None = None, **plan: Any
) -> Summary:
    made = [record(0, 1.0)] if records is None else records
    return summarize(write_run(path / "run", made, LoadPlan(seconds=10, **plan), server))


def found(made: Summary) -> dict[str, CountComparison]:
    return {match.name: match for match in made.reconciliation}


def test_queue_batch_and_cache_over_the_measured_part(tmp_path: Path) -> None:
    queue = "inflight_queue_time_seconds"
    pages = [
        at(-1, {f"{queue}_sum": 100, f"{queue}_count": 7}, gauges(0, 0, 0), moment="before"),
        at(2, {f"{queue}_sum": 110, f"{queue}_count": 17}, gauges(4, 0, 0.5)),  # the warm-up ends here
        at(5, {f"{queue}_sum": 111, f"{queue}_count": 27}, gauges(8, 3, 0.75)),
        at(10, {f"{queue}_sum": 112, f"{queue}_count": 37}, gauges(0, 0, 0)),
        at(30, {f"{queue}_sum": 912, f"{queue}_count": 38}, gauges(99, 99, 1), moment="after"),
    ]
    side = summarize(write_run(tmp_path / "run", [record(0, 3)], LoadPlan(warmup=2, seconds=8), pages)).server
    assert isinstance(side, ServerSide)
    assert side.queue_seconds == pytest.approx(2 / 20)
    assert side.requests_per_batch == pytest.approx(6)
    assert (side.kv_use_peak, side.waiting_peak) == (0.75, 3)
    assert (side.ttft_seconds, side.rejected, side.output_tokens) == (None, None, None)
    assert side.notes == ()


def test_the_pages_of_tensorrt_llms_own_backend(tmp_path: Path) -> None:
    def page(n: int) -> dict[str, float]:
        histogram = "nv_inference_first_response_histogram_ms"
        return {
            **runs_of("tensorrt_llm", 10 * n),
            **tokens(100 * n, 40 * n),
            f'nv_inference_request_failure{{{MODEL},reason="REJECTED",version="1"}}': 2 * n,
            f'nv_inference_queue_duration_us{{{MODEL},version="1"}}': 5e6 * n,
            f'{histogram}_sum{{{MODEL},version="1"}}': 2000.0 * n,
            f'{histogram}_count{{{MODEL},version="1"}}': 10 * n,
            'nv_inference_count{model="preprocessing",version="1"}': 10 * n,
            'nv_inference_exec_count{model="preprocessing",version="1"}': 4 * n,
        }

    side = summary(tmp_path, [at(0, page(1), moment="before"), at(10, page(3), moment="after")]).server
    assert isinstance(side, ServerSide)
    assert side.queue_seconds == pytest.approx(0.5)
    assert side.ttft_seconds == pytest.approx(0.2)
    assert side.executions == {"preprocessing": 2.5}
    assert (side.output_tokens, side.rejected) == (80, 4)


def test_without_any_page_nothing_is_said(tmp_path: Path) -> None:
    made = summary(tmp_path, [])
    assert made.server is None
    assert made.reconciliation == ()
    empty = summarize(write_run(tmp_path / "empty", [], LoadPlan(), [at(0, moment="before"), at(9, moment="after")]))
    assert empty.server is None, "a server that did not answer when it was read"


def test_a_server_that_was_started_again_is_noticed(tmp_path: Path) -> None:
    pages = [
        at(0, ends(LENGTH=500), tokens(9, 9000), moment="before"),
        at(4, ends(LENGTH=510), tokens(9, 9400)),
        at(5, ends(LENGTH=2), tokens(9, 50)),
        at(10, ends(LENGTH=9), tokens(9, 250), moment="after"),
    ]
    made = summary(tmp_path, pages)
    assert isinstance(made.server, ServerSide)
    assert made.server.output_tokens == 400 + 250, "what came since it began anew, and never a negative number"
    assert len(made.server.notes) == 1
    assert "restarted at about second 5" in made.server.notes[0]
    assert "its counts are not compared with the client's" in made.server.notes[0]
    assert made.reconciliation == ()


@pytest.mark.parametrize(
    ("moments", "says"),
    [
        (("before", "during"), ["the server's metrics were not read after the run"]),
        (("during", "after"), ["the server's metrics were not read before the run"]),
        (("during", "during"), ["not read before", "not read after the run"]),
        (("before", "after"), []),
    ],
)
def test_a_run_before_or_after_which_nobody_read_the_server_compares_no_counts_and_says_why(
    tmp_path: Path, moments: tuple[str, str], says: list[str]
) -> None:
    first, last = moments
    made = summary(tmp_path, [at(0, ends(LENGTH=5), moment=first), at(4, ends(LENGTH=9), moment=last)])
    assert (made.reconciliation == ()) is bool(says)
    assert isinstance(made.server, ServerSide)
    assert len(made.server.notes) == len(says)
    for note, part in zip(made.server.notes, says, strict=True):
        assert part in note
        assert "so its counts are not compared with the client's" in note


def test_counts_agree_when_every_request_is_accounted_for(tmp_path: Path) -> None:
    records = [
        *(record(i, i * 0.1, gaps=[0.01] * 4, finish_reason="length") for i in range(5)),
        record(5, 1, gaps=[0.01] * 2, finish_reason="stop"),
        record(6, 2, gaps=[0.01], outcome=RequestOutcome.CANCELLED, finish_reason="", input_tokens=None),
        failure(7, 3, "overloaded", RequestOutcome.REJECTED),
        failure(8, 4, "empty_prompt"),
        failure(9, 5, "deadline_exceeded", RequestOutcome.TIMED_OUT, chunks=(5.01,), output_tokens=1),
        failure(10, 6, "server_unreachable"),
        failure(11, 7, "engine_died", chunks=(7.01, 7.02), output_tokens=2),
    ]
    before = {**ends(LENGTH=100, STOP=1), **runs_of("preprocessing", 200), **tokens(1000, 1000)}
    after = {
        **ends(LENGTH=105, STOP=2, CANCELED=1, REJECTED=1, DEADLINE=1, ERROR=1),
        **runs_of("preprocessing", 211),
        **tokens(1000 + 80, 1000 + 25 + 3 + 4 + 1),  # two of the cancelled one's tokens were not received
    }
    made = found(summary(tmp_path, whole(before, after), records))
    assert {name: (match.client, match.server) for name, match in made.items()} == {
        "requests": (11, 11),
        "length": (5, 5),
        "stop": (1, 1),
        "stop_word": (0, 0),
        "cancelled": (1, 1),
        "timed out": (1, 1),
        "engine died": (1, 1),
        "refused": (2, 2),
        "input tokens": (60, 80),
        "output tokens": (33, 33),
    }
    assert all(match.consistent for match in made.values())
    assert "1 never reached it" in made["requests"].note
    assert "for 2 requests the client does not know the number" in made["input tokens"].note
    assert "up to 13 more" in made["output tokens"].note, "8 less the 2 and the 1 that they saw"


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ({"LENGTH": 4}, "length"),
        ({"LENGTH": 6}, "length"),
        ({"STOP": 1}, "stop"),
        ({"REJECTED": 1}, "refused"),
        ({"CANCELED": 1}, "cancelled"),
        ({"DEADLINE": 1}, "timed out"),
        ({"ERROR": 1}, "engine died"),
    ],
)
def test_a_count_that_is_off_by_one_disagrees(tmp_path: Path, server: dict[str, int], name: str) -> None:
    counts = {"LENGTH": 5, **server}
    after = {**ends(**counts), **runs_of("preprocessing", sum(counts.values()))}
    records = [record(i, i * 0.1) for i in range(5)]
    made = found(summary(tmp_path, whole({**ends(LENGTH=0), **runs_of("preprocessing", 0)}, after), records))
    assert not made[name].consistent
    assert made[name].difference == made[name].client - made[name].server != 0


@pytest.mark.parametrize(("written", "agrees"), [(9, False), (10, True), (22, True), (23, False)])
def test_of_a_client_that_left_the_server_may_have_made_more_but_not_more_than_was_asked(
    tmp_path: Path, written: int, agrees: bool
) -> None:
    records = [
        record(0, 0, gaps=[0.01] * 5),
        record(1, 1, gaps=[0.01] * 3, outcome=RequestOutcome.CANCELLED, max_tokens=16),
    ]
    after = {**ends(LENGTH=1, CANCELED=1), **runs_of("preprocessing", 2), **tokens(20, written)}
    made = found(summary(tmp_path, whole({**ends(LENGTH=0), **tokens(0, 0)}, after), records))
    assert made["output tokens"].consistent is agrees


def test_a_cancelled_request_may_have_been_complete_on_the_server(tmp_path: Path) -> None:
    records = [record(0, 0), record(1, 1, outcome=RequestOutcome.CANCELLED, finish_reason="")]
    after = {**ends(LENGTH=2), **runs_of("preprocessing", 2)}
    made = found(summary(tmp_path, whole({**ends(LENGTH=0), **runs_of("preprocessing", 0)}, after), records))
    assert (made["length"].difference, made["cancelled"].difference) == (-1, 1)
    assert all(match.consistent for match in made.values())


def test_a_client_that_left_before_any_response_may_never_have_come(tmp_path: Path) -> None:
    records = [record(0, 0), failure(1, 1, "", RequestOutcome.CANCELLED)]
    for number, agrees in ((0, False), (1, True), (2, True), (3, False)):
        after = {**ends(LENGTH=min(1, number)), **runs_of("preprocessing", number)}
        server = whole({**ends(LENGTH=0), **runs_of("preprocessing", 0)}, after)
        assert found(summary(tmp_path / str(number), server, records))["requests"].consistent is agrees


def test_a_plans_own_tenant_is_told_from_others(tmp_path: Path) -> None:
    def page(own: int, others: int) -> dict[str, float]:
        series = 'inflight_tenant_tokens_total{kind="output",tenant="%s"}'
        return {series % "me": own, series % "you": others, **tokens(0, own + others), **ends(LENGTH=own // 2)}

    made = found(summary(tmp_path, whole(page(0, 50), page(2, 900)), tenant="me"))
    assert (made["output tokens"].client, made["output tokens"].server) == (2, 2)


def test_where_the_engine_counts_no_ends_the_ensemble_does(tmp_path: Path) -> None:
    records = [record(0, 0, finish_reason="unknown"), record(1, 1, outcome=RequestOutcome.CANCELLED, finish_reason="")]
    before = {**runs_of("ensemble", 3), **runs_of("preprocessing", 3), **tokens(0, 0)}
    after = {**runs_of("ensemble", 4, 2), **runs_of("preprocessing", 5), **tokens(10, 2)}
    made = found(summary(tmp_path, whole(before, after), records))
    assert (made["completed"].client, made["completed"].server) == (1, 1)
    assert (made["requests"].client, made["requests"].server) == (2, 2)
    assert made["output tokens"].consistent, "nobody promises that it counts tokens of cancelled requests"


def test_series_may_be_read_by_a_parser_that_adds_total_to_counters(tmp_path: Path) -> None:
    series = 'nv_inference_request_success_total{model="preprocessing",version="1"}'
    assert found(summary(tmp_path, whole({series: 4.0}, {series: 5.0})))["requests"].consistent
