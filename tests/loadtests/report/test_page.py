"""The contents of a page, without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from loadtests.analysis.summary import (
    CountComparison,
    DistributionSummary,
    Requests,
    ServerSide,
    SloResult,
    Summary,
    Validity,
)
from loadtests.report.page import run_page
from tests.fixtures.load_summaries import empty_summary, typical_summary
from tests.fixtures.page_reader import PageReader


def figures(page: str) -> list[dict[str, Any]]:
    found = re.search(r'id="figures">(.*?)</script>', page)
    assert found
    drawn: list[dict[str, Any]] = json.loads(found[1])
    return drawn


def read(summary: Summary) -> str:
    return PageReader(run_page(summary)).text


def test_the_headline_answers_the_question_in_one_sentence() -> None:
    summary = typical_summary()
    fast = {name: replace(spread, p99=0.04) for name, spread in summary.latencies.items()}
    kept = replace(summary, latencies=fast, slo=tuple(replace(bound, value=0.04, met=True) for bound in summary.slo))
    assert (
        "At 14 requests/s the first token came within 40 ms and each further one within 40 ms (p99); "
        "the SLO was met (p99 ttft ≤ 500ms, p99 itl ≤ 50ms); "
        "2.4% of the requests were lost and are not in these latencies; a million output tokens cost 0.814 USD."
    ) in read(kept)
    whole = replace(kept, requests=Requests(1640, 1600, 40, 0, 0, 0, 0))
    assert "were lost" not in read(whole).partition("Lost")[0]
    broken = replace(kept, slo=(replace(kept.slo[0], value=0.7, met=False), kept.slo[1]))
    assert "the SLO was missed (p99 ttft ≤ 500ms);" in read(broken)


def test_a_closed_loop_is_told_by_how_many_were_at_it_at_a_time() -> None:
    plan = {"arrivals": {"kind": "users", "profile": "32"}}
    summary = replace(typical_summary(), metadata={"plan": plan})
    summary = replace(summary, timeline=replace(summary.timeline, columns={"open": (0.0, *[32.0] * 138, 3.0)}))
    assert "At 32 requests at a time (14 requests/s) the first token" in read(summary)


def test_a_run_that_is_not_to_be_trusted_says_so_before_all_else() -> None:
    reasons = ("Requests were sent up to 1.4 s late (p99 230 ms).", "Worker 1 used 1.0 of its processor core.")
    page = run_page(replace(typical_summary(), validity=replace(typical_summary().validity, reasons=reasons)))
    assert page.index('role="alert"') < page.index("<h1>")
    text = PageReader(page).text
    assert text.index(reasons[0]) < text.index(reasons[1]) < text.index("At 14 requests/s")
    assert "its figures are reliable" not in text
    assert 'role="alert"' not in run_page(typical_summary())


def test_a_bound_stands_with_its_limit_what_was_found_and_what_makes_it_unsure() -> None:
    unsure = "160 requests are too few for 95% confidence; at least 299 are needed"
    bounds = (
        SloResult("p99 ttft<=500ms", 0.4321, 0.5, True, 160, unsure),
        SloResult("error_rate <= 1%", 0.0204, 0.01, False),
        SloResult("mean e2e < 3s", None, 3.0, False),
    )
    text = read(replace(typical_summary(), slo=bounds))
    assert f"p99 ttft ≤ 500ms {unsure}. 500 ms 432 ms met" in text
    assert "error_rate ≤ 1% 1% 2% missed" in text
    assert "mean e2e < 3s 3 s – missed" in text
    assert "the SLO was missed (error_rate ≤ 1%, mean e2e < 3s);" in text


def test_goodput_is_told_of_sent_and_of_completed() -> None:
    assert "Goodput 93.9% / 96.2% of sent / of completed; 12.8 requests/s" in read(typical_summary())


def test_each_latency_stands_with_all_its_percentiles() -> None:
    spread = DistributionSummary(1234, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1)
    text = read(replace(typical_summary(), latencies={"tpot": spread}))
    assert "TPOT 1,234 300 ms 100 ms 400 ms 500 ms 600 ms 700 ms 800 ms 900 ms 1.1 s 200 ms" in text


def test_counts_that_differ_between_the_sides_are_red() -> None:
    page = run_page(typical_summary())
    assert '<td class="figure bad">+1</td>' in page
    assert page.count('<td class="figure good">0</td>') == 2
    explained = CountComparison("output tokens", 10, 12, "with tokens that nobody saw", allowed_more=None)
    page = run_page(replace(typical_summary(), reconciliation=(explained,)))
    assert '<td class="figure">-2</td>' in page


def test_a_page_without_the_servers_side_says_what_is_not_known() -> None:
    facts = {**typical_summary().metadata, "server_metrics_error": "connection refused"}
    for server in (None, ServerSide(None, None, None, None, None, None, None, None)):
        text = read(replace(typical_summary(), server=server, reconciliation=(), metadata=facts))
        assert "are unknown (connection refused); pass" in text
        assert "mean queue time" not in text
    assert "--metrics-url" not in read(typical_summary())


def test_counts_that_can_not_be_compared_say_why() -> None:
    server = typical_summary().server
    assert server
    started = replace(server, notes=("the server was started again, so its counts are not compared with the client's",))
    text = read(replace(typical_summary(), server=started, reconciliation=()))
    sides, _, agree = text.partition("Client and server counts")
    assert "The server was started again, so its counts are not compared with the client's." in sides
    assert agree.startswith(" The counts are not compared; see the notes on the server's figures for the reason. ")
    unknown = read(replace(typical_summary(), reconciliation=()))
    assert "The server's metrics have no counts of requests and tokens to compare with." in unknown
    assert "nothing to compare" not in text + unknown


@pytest.mark.parametrize("facts", [{}, {"plan": None}, {"plan": {"warmup": "x"}}, {"plan": {"arrivals": {}}}])
def test_a_run_of_which_nothing_is_known_has_a_page_still(facts: dict[str, Any]) -> None:
    page = run_page(replace(empty_summary(), metadata=facts))
    assert "Nothing was measured: no request was due" in page
    assert len(page) < 100_000, "a page without charts needs no plotly"


def test_facts_are_told_in_words() -> None:
    facts = {
        "began": "2026-11-22T00:53:27+00:00",
        "interrupted": False,
        "machine": {"memory_bytes": 25276502016, "load_average": [0.1, 0.2]},
        "models": [{"name": "ensemble", "state": "READY"}, {"name": "tensorrt_llm", "state": "READY"}],
        "plan": {"arrivals": {"kind": "rate", "profile": "8"}, "tenant": "", "price_per_hour": None},
    }
    text = read(replace(empty_summary(), metadata=facts)).partition("Versions, machine and plan")[2]
    assert "interrupted no models ensemble READY, tensorrt_llm READY" in text
    assert "Machine fact value memory 23.5 GiB load average 0.1, 0.2" in text
    assert text.endswith("Plan fact value arrivals: kind rate arrivals: profile 8")


def test_a_run_in_which_nothing_was_completed_says_so() -> None:
    requests = Requests(40, 0, 0, 40, 0, 0, 0, {"overloaded": 40}, {"overloaded": "No room."})
    text = read(
        replace(empty_summary(), measured_seconds=10.0, requests=requests, validity=Validity((), None, {}, 0, 0))
    )
    assert "None of 40 requests was completed in 10 s." in text
    assert "overloaded No room. 40" in text


def test_a_page_names_nothing_that_would_be_fetched() -> None:
    page = run_page(typical_summary())
    assert PageReader(page).addresses == ["data:,"]
    assert "default-src 'none'" in page.replace("&#39;", "'")


def test_charts_hold_what_was_measured_in_the_unit_that_they_name() -> None:
    summary = typical_summary()
    drawn = {figure["name"]: figure for figure in figures(run_page(summary))}
    assert set(drawn) == {
        "timeline",
        "curve-ttft",
        "curve-e2e",
        "curve-itl",
        "curve-tpot",
        "trade-off-ttft",
        "trade-off-itl",
    }
    itl = drawn["curve-itl"]
    assert itl["layout"]["yaxis"]["title"]["text"] == "ms"
    assert itl["data"][0]["y"][-1] == pytest.approx(summary.latencies["itl"].max * 1e3, rel=1e-3)
    assert itl["layout"]["shapes"][0]["y0"] == 50
    kv = next(trace for trace in drawn["timeline"]["data"] if trace["line"]["color"] == "--purple")
    assert "delay of event loops" not in [trace["name"] for trace in drawn["timeline"]["data"]]
    assert max(kv["y"]) == pytest.approx(100 * max(v for v in summary.timeline.columns["kv_use"] if v), rel=1e-3)


def test_the_delays_of_the_load_generators_event_loops_stand_over_time() -> None:
    summary = typical_summary()
    columns = dict(summary.timeline.columns) | {"lag": (None, 0.004, *[0.012] * 138)}
    drawn = figures(run_page(replace(summary, timeline=replace(summary.timeline, columns=columns))))
    (lag,) = [trace for trace in drawn[0]["data"] if trace["name"] == "delay of event loops"]
    assert lag["y"][:3] == [None, 4, 12]
    titles = [note["text"] for note in drawn[0]["layout"]["annotations"]]
    assert "<b>Event loop delay of the load generator (ms)</b>" in titles


def test_latencies_that_differ_widely_have_a_logarithmic_axis_with_whole_figures() -> None:
    summary = typical_summary()
    slow = {name: replace(spread, p99=28.0) for name, spread in summary.load_phases[-1].latencies.items()}
    slices = (*summary.load_phases[:-1], replace(summary.load_phases[-1], latencies=slow))
    drawn = {figure["name"]: figure for figure in figures(run_page(replace(summary, load_phases=slices)))}
    layout = drawn["trade-off-ttft"]["layout"]
    assert layout["yaxis"]["type"] == "log"
    assert layout["yaxis"]["ticktext"][:5] == ["0.01", "0.02", "0.05", "0.1", "0.2"]
    assert layout["shapes"][0]["y0"] == 0.5
    assert layout["annotations"][0]["y"] == pytest.approx(-0.301, abs=0.001)


def test_figures_that_are_no_numbers_leave_gaps() -> None:
    summary = typical_summary()
    broken = dict(summary.timeline.columns) | {"tokens": (float("nan"), float("inf"), *[1.0] * 138)}
    drawn = figures(run_page(replace(summary, timeline=replace(summary.timeline, columns=broken))))
    tokens = next(trace for trace in drawn[0]["data"] if trace["name"] == "output tokens")
    assert tokens["y"][:3] == [None, None, 1.0]
