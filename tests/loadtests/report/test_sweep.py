"""What a sweep's page says."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from inflight.commands.load.display import show_sweep
from loadtests.analysis.rate_search import RateSearch
from loadtests.analysis.sweep import Sweep, SweepStep
from loadtests.report.latency_charts import throughput_charts
from loadtests.report.page import sweep_page
from loadtests.report.sweep import points
from loadtests.run.sweep_runner import with_result
from tests.fixtures.load_summaries import sample_sweep
from tests.fixtures.page_reader import PageReader, read

PROMISE = "(p95 ttft ≤ 500ms, p99 itl ≤ 120ms)"


def test_the_headline_says_up_to_which_rate_the_promise_holds_and_what_it_costs_there() -> None:
    text = read(sweep_page(replace(sample_sweep(), confirmed=True)))
    assert (
        f"The SLO {PROMISE} is met up to 22.6 sessions/s, where a million output tokens cost 0.505 USD; "
        "2.4% of the requests were lost at that rate; at 32 sessions/s it is missed."
    ) in text
    assert "22.6 sessions/s within 10%, after 7 runs" in text
    assert f"The SLO {PROMISE} is met up to 22.6 sessions/s (seen once), where" in read(sweep_page(sample_sweep()))


def test_a_promise_that_held_nowhere_or_everywhere_is_told_as_that() -> None:
    found = sample_sweep()
    broken = tuple(step for step in found.steps if not step.met)
    nowhere = replace(found, steps=broken, highest=None, lowest_missed=32.0, converged=False)
    text = read(sweep_page(nowhere))
    assert f"The SLO {PROMISE} was met at no tested rate, down to 32 sessions/s." in text
    assert "not converged after 1 run" in text
    everywhere = replace(found, steps=found.steps[:2], highest=8.0, lowest_missed=None, converged=False, unit="users")
    text = read(sweep_page(everywhere))
    assert "is met up to 8 users" in text
    assert "no higher rate was tested, so the limit may be higher" in text
    assert "raise --max-runs" in text
    text = read(sweep_page(replace(everywhere, interrupted=True)))
    assert "The sweep was interrupted" in text
    assert "raise --max-runs" not in text


def test_runs_stand_by_their_rate_with_what_was_found_for_each_bound() -> None:
    page = sweep_page(sample_sweep())
    table = read(page).partition(" Runs ")[2].partition("Latencies at the highest rate")[0]
    rows = [" 19 19 6 ", " 20.7 20.7 7 ", " 22.6 ★ 22.6 5 ", " 32 32 4 "]
    assert sorted(rows, key=table.index) == rows
    assert '<td class="figure bad">2.4 s</td><td class="figure bad">545 ms</td>' in page
    assert "goodput of sent / of completed" in table
    assert table.count("93.9% / 96.2%") == 7
    assert "too few" not in table


def test_bounds_of_which_too_few_samples_exist_are_named_with_their_rate() -> None:
    found = sample_sweep()
    few = "160 requests are too few for 95% confidence; at least 299 are needed"
    step = found.steps[4]
    bounds = (step.summary.slo[0], replace(step.summary.slo[1], note=few))
    unsure = replace(step, summary=replace(step.summary, slo=bounds))
    page = sweep_page(replace(found, steps=(*found.steps[:4], unsure, *found.steps[5:])))
    assert f"At 22.6 sessions/s, p99 itl ≤ 120ms: {few}." in read(page)


def test_each_run_leads_to_its_own_page_beside_this_one() -> None:
    found = sample_sweep()
    odd = replace(found.steps[0], run="javascript:alert(1)//a b")
    page = sweep_page(replace(found, steps=(odd, *found.steps[1:])))
    links = [address for address in PageReader(page).addresses if address != "data:,"]
    assert sorted(links[1:]) == sorted(f"run-{place}/report.html" for place in range(1, 7))
    assert links[0] == "javascript%3Aalert%281%29//a%20b/report.html"


def test_a_run_that_is_not_to_be_trusted_is_named_with_its_rate_before_all_else() -> None:
    found = sample_sweep()
    step = found.steps[3]
    late = replace(
        step, summary=replace(step.summary, validity=replace(step.summary.validity, reasons=("it was late",)))
    )
    page = sweep_page(replace(found, steps=(*found.steps[:3], late, *found.steps[4:])))
    assert page.index('role="alert"') < page.index("At 32 sessions/s: It was late.") < page.index("<h1>")


def test_a_sweep_without_a_run_has_a_page() -> None:
    page = sweep_page(Sweep(("p99 ttft <= 1s",), (), 0.1))
    assert "There are no runs" in read(page)


def repeated(*runs: tuple[float, float, bool], unit: str = "sessions/s") -> Sweep:
    """Of runs by the rate that was asked for, the one that was due, and whether the SLO was met."""
    made = sample_sweep().steps[0]
    bound = made.summary.slo[0]
    search = RateSearch(runs[0][0], max_runs=len(runs))
    steps = []
    for place, (rate, due, kept) in enumerate(runs):
        summary = replace(made.summary, offered_sessions_per_second=due, slo=(replace(bound, met=kept),))
        steps.append(SweepStep(rate, f"run-{place}", summary, kept))
        search.record(rate, kept)
    return with_result(Sweep((bound.text,), tuple(steps), 0.1, unit), search)


def test_a_highest_rate_that_broke_once_says_so_here_and_on_the_terminal() -> None:
    found = repeated((16.14, 16.14, True), (16.14, 16.14, False), (16.14, 16.14, True))
    said = io.StringIO()
    show_sweep(found, Console(file=said, width=200))
    for text in (read(sweep_page(found)), said.getvalue()):
        assert "16.1 sessions/s (met in 2 of 3 runs)" in text
        assert "no higher rate was tested" in text
        assert "did not break" not in text


def test_rates_are_those_that_were_really_due_beside_those_asked_for() -> None:
    found = repeated((4, 5.0, True), (8, 9.0, True), (16, 20.0, False), (8, 10.0, True), (16, 18.0, True))
    assert (found.highest, found.highest_due, found.lowest_missed_due) == (8, 9.5, 19)
    said = io.StringIO()
    show_sweep(found, Console(file=said, width=200))
    page = read(sweep_page(found))
    for text in (page, said.getvalue()):
        assert "9.5 sessions/s (8 requested)" in text
        assert "at 19 sessions/s (16 requested) it is missed in 1 of 2 runs" in text
    assert "Highest rate 9.5 sessions/s" in page
    assert "sessions/s due requested run" in page
    of_users = read(sweep_page(repeated((4, 5.0, True), (8, 9.0, False), unit="users")))
    assert "is met up to 4 users (seen once)" in of_users
    assert "requested" not in of_users


def test_rates_that_overlap_in_what_was_due_are_not_told_apart() -> None:
    found = repeated((8, 12.0, True), (9, 10.0, False))
    assert "make longer runs" in read(sweep_page(found))


def test_a_note_of_several_runs_is_said_once_with_their_rates() -> None:
    found = sample_sweep()
    grade = replace(found.steps[0].summary.validity, reasons=("it was late",))
    steps = tuple(replace(step, summary=replace(step.summary, validity=grade)) for step in found.steps[:3])
    page = read(sweep_page(replace(found, steps=steps)))
    assert page.count("It was late.") == 1
    assert "At 4 sessions/s, 8 sessions/s and 16 sessions/s: It was late." in page


def test_the_line_goes_through_one_of_the_runs_that_repeat_one_another() -> None:
    found = repeated((4, 4, True), (8, 8, True), (4, 4, False), (8, 8, True), (4, 4, True))
    for chart in throughput_charts(points(found), ()):
        assert all(len(trace["x"]) == 2 for trace in chart.data if "lines" in trace["mode"])
        assert sum(len(trace["x"]) for trace in chart.data if trace["mode"] == "markers") == 5
