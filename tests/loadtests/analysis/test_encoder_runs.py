"""The figures of runs against an encoder, and that none of generated tokens is among them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadtests.analysis.comparison.compare import compare
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import EncoderSide, Summary, TextCost
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.report.page import run_page
from loadtests.report.write_reports import read_figures, write_figures, write_requests
from loadtests.run.plan_check import check_plan
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import failure, record, server_sample, write_run

PLAN = LoadPlan(
    seconds=10, workload=WorkloadSpec(task="embed", texts_per_request="4"), slo=("p50 e2e <= 1s",), price_per_hour=36
)
LABELS = 'model="embedding",version="1"'


def answered(session: int, due: float, seconds: float = 0.5, **values: Any) -> RequestRecord:
    whole = {"chunks": (), "ended": due + seconds, "output_tokens": None, "finish_reason": "", "max_tokens": 0}
    return record(session, due, **{**whole, "texts": 4, "input_tokens": 100, **values})


def page(texts: int, real: int, padded: int, waiting: int = 0) -> dict[str, float]:
    return {
        f'inflight_encoder_texts_total{{{LABELS},status="ok"}}': texts,
        f'inflight_encoder_tokens_total{{{LABELS},kind="real"}}': real,
        f'inflight_encoder_tokens_total{{{LABELS},kind="padded"}}': padded,
        'inflight_encoder_tokens_total{model="rerank",version="1",kind="padded"}': 10 * padded,
        f"inflight_encoder_batch_texts_sum{{{LABELS}}}": texts,
        f"inflight_encoder_batch_texts_count{{{LABELS}}}": texts / 2,
        f"inflight_encoder_waiting_texts{{{LABELS}}}": waiting,
    }


def run(path: Path) -> RunDirectory:
    records = [answered(i, i, seconds=0.5 + i % 2) for i in range(9)]
    records.append(failure(9, 9, "overloaded", RequestOutcome.REJECTED, texts=4, max_tokens=0))
    pages = [
        server_sample(-1, "before", **page(100, 1000, 2000)),
        server_sample(5, "during", **page(120, 1500, 2540, waiting=7)),
        server_sample(10, "after", **page(136, 1900, 2990)),
    ]
    return write_run(path / "run", records, PLAN, pages)


def test_texts_and_their_tokens_are_counted(tmp_path: Path) -> None:
    found = summarize(run(tmp_path))
    assert found.tokens is None
    assert found.texts is not None
    assert (found.texts.texts, found.texts.tokens) == (36, 900)
    assert found.texts.per_second == pytest.approx(3.6)
    assert found.texts.tokens_per_second == pytest.approx(90)
    assert (found.texts.per_request, found.texts.tokens_per_text) == (4, 25)
    assert found.throughput.unit == "texts/s"
    assert set(found.latencies) == {"e2e", "e2e_sent"}
    assert found.slo[0].met
    assert isinstance(found.cost, TextCost)
    assert found.cost.per_million_texts == pytest.approx(0.1 / 36 * 1e6)
    assert found.cost.per_million_tokens == pytest.approx(0.1 / 900 * 1e6)


def test_audio_has_a_real_time_factor(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"workload": WorkloadSpec(task="transcribe", prompts="f"), "price_per_hour": None})
    heard = [answered(i, i, texts=1, input_tokens=None, audio_seconds=2.0 + 2 * (i % 2)) for i in range(8)]
    heard.append(failure(9, 9, "audio_damaged", RequestOutcome.FAILED, texts=1, max_tokens=0))
    found = summarize(write_run(tmp_path / "run", heard, plan, []))
    assert found.texts is not None
    assert found.texts.audio_seconds == 24
    assert found.texts.audio_per_second == pytest.approx(2.4)
    assert found.texts.real_time_factor == pytest.approx((0.25 + 0.125) / 2)
    assert "2.4 s/s" in run_page(found, library="charts.js")
    assert read_figures(write_figures(found, tmp_path / "report.json"), Summary) == found


def test_padding_is_read_off_the_page_of_the_plans_model(tmp_path: Path) -> None:
    found = summarize(run(tmp_path))
    assert isinstance(found.server, EncoderSide)
    assert found.server.padding == pytest.approx(990 / 900)
    assert (found.server.texts_per_batch, found.server.waiting_peak) == (2, 7)
    assert [(match.name, match.client, match.server) for match in found.reconciliation] == [
        ("texts", 36, 36),
        ("tokens", 900, 900),
    ]
    assert all(match.consistent for match in found.reconciliation)


def test_no_figure_is_about_generated_tokens(tmp_path: Path) -> None:
    directory = run(tmp_path)
    found = summarize(directory)
    shown = json.dumps(found.as_json()) + run_page(found, library="charts.js") + write_requests(directory).read_text()
    generated = r"\b(ttft|itl|tpot|first token|output[ _]tokens?|kv[ _]\w+)"
    assert not re.findall(generated, shown, re.IGNORECASE)
    assert "padded / real tokens" in shown
    assert read_figures(write_figures(found, tmp_path / "report.json"), Summary) == found


def test_a_comparison_has_texts_per_second_and_no_latency_of_tokens(tmp_path: Path) -> None:
    directory = run(tmp_path)
    changes = compare([directory], [directory]).changes
    assert [change.metric for change in changes] == ["p50 e2e", "p99 e2e", "throughput", "error_rate", "goodput"]
    assert changes[2].unit == "texts/s"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"slo": ("p99 ttft <= 1s",)}, "ttft"),
        ({"workload": WorkloadSpec(task="classify"), "slo": ("mean itl <= 1s",)}, "itl"),
        ({"workload": WorkloadSpec(task="classify"), "slo": (), "input_type": "query"}, "input_type"),
        ({"workload": WorkloadSpec(task="transcribe"), "slo": (), "price_per_hour": 2}, "price_per_hour"),
        ({"tenant": "a"}, "tenant"),
        ({"workload": WorkloadSpec(), "slo": (), "priority": 1}, "priority"),
    ],
)
def test_options_without_effect_on_the_task_are_refused(values: dict[str, Any], named: str) -> None:
    with raises(LoadError, "invalid_parameter", naming=named):
        check_plan(PLAN.model_copy(update=values))
