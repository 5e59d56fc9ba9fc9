"""What a sweep's page says."""

from __future__ import annotations

from dataclasses import replace

from loadtests.analysis.sweep import Sweep
from loadtests.report.page import sweep_page
from tests.loadtests.report.reader import Reader, read
from tests.loadtests.report.summaries import sweep

PROMISE = "(p95 ttft ≤ 500ms, p99 itl ≤ 120ms)"


def test_the_headline_says_up_to_which_rate_the_promise_holds_and_what_it_costs_there() -> None:
    text = read(sweep_page(replace(sweep(), confirmed=True)))
    assert (
        f"The promise {PROMISE} holds up to 22.6 sessions/s, where a million output tokens cost 0.505 USD; "
        "2.4% of the requests were lost there; at 32 sessions/s it is broken."
    ) in text
    assert "22.6 sessions/s within 10%, after 7 runs" in text
    assert f"The promise {PROMISE} holds up to 22.6 sessions/s (seen once), where" in read(sweep_page(sweep()))


def test_a_promise_that_held_nowhere_or_everywhere_is_told_as_that() -> None:
    found = sweep()
    broken = tuple(step for step in found.steps if not step.kept)
    nowhere = replace(found, steps=broken, highest=None, lowest_broken=32.0, settled=False)
    text = read(sweep_page(nowhere))
    assert f"The promise {PROMISE} held at no rate that was tried, down to 32 sessions/s." in text
    assert "not settled after 1 run" in text
    everywhere = replace(found, steps=found.steps[:2], highest=8.0, lowest_broken=None, settled=False, unit="users")
    text = read(sweep_page(everywhere))
    assert "holds up to 8 users" in text
    assert "no higher rate was tried, so it may hold beyond" in text
    assert "allow it more" in text
    text = read(sweep_page(replace(everywhere, interrupted=True)))
    assert "The sweep was interrupted" in text
    assert "allow it more" not in text


def test_runs_stand_by_their_rate_with_what_was_found_for_each_bound() -> None:
    page = sweep_page(sweep())
    table = read(page).partition("The runs")[2].partition("Latencies at the highest rate")[0]
    assert table.index(" 19 6 ") < table.index(" 20.7 7 ") < table.index(" 22.6 ★ 5 ") < table.index(" 32 4 ")
    assert '<td class="figure bad">2.4 s</td><td class="figure bad">545 ms</td>' in page
    assert "goodput of sent / of completed" in table
    assert table.count("93.9% / 96.2%") == 7
    assert "too few" not in table


def test_bounds_of_which_too_few_samples_exist_are_named_with_their_rate() -> None:
    found = sweep()
    few = "160 requests are too few to be 95% sure: it takes 299"
    step = found.steps[4]
    bounds = (step.summary.promise[0], replace(step.summary.promise[1], note=few))
    unsure = replace(step, summary=replace(step.summary, promise=bounds))
    page = sweep_page(replace(found, steps=(*found.steps[:4], unsure, *found.steps[5:])))
    assert f"At 22.6 sessions/s, p99 itl ≤ 120ms: {few}." in read(page)


def test_each_run_leads_to_its_own_page_beside_this_one() -> None:
    found = sweep()
    odd = replace(found.steps[0], run="javascript:alert(1)//a b")
    page = sweep_page(replace(found, steps=(odd, *found.steps[1:])))
    links = [address for address in Reader(page).addresses if address != "data:,"]
    assert sorted(links[1:]) == sorted(f"run-{place}/report.html" for place in range(1, 7))
    assert links[0] == "javascript%3Aalert%281%29//a%20b/report.html"


def test_a_run_that_is_not_to_be_trusted_is_named_with_its_rate_before_all_else() -> None:
    found = sweep()
    step = found.steps[3]
    late = replace(step, summary=replace(step.summary, grade=replace(step.summary.grade, reasons=("it was late",))))
    page = sweep_page(replace(found, steps=(*found.steps[:3], late, *found.steps[4:])))
    assert page.index('role="alert"') < page.index("At 32 sessions/s: It was late.") < page.index("<h1>")


def test_a_sweep_without_a_run_has_a_page() -> None:
    page = sweep_page(Sweep(("p99 ttft <= 1s",), (), None, None, 0.1, False))
    assert "No run was made" in read(page)
