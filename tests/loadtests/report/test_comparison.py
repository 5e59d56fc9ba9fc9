"""What a comparison's page says."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.analysis.comparison.compare import compare
from loadtests.analysis.comparison.result import Comparison
from loadtests.plan import LoadPlan
from loadtests.report.page import comparison_page
from loadtests.run_directory import RunDirectory
from tests.fixtures.load_runs import record, write_run
from tests.fixtures.load_summaries import sample_comparison
from tests.fixtures.page_reader import PageReader, read


def headline(found: Comparison) -> str:
    heading = re.search(r"<h1[^>]*>(?:<span.*?</span> )?(.*?)</h1>", comparison_page(found))
    assert heading
    return html.unescape(heading[1])


def test_the_headline_names_the_regressions_with_their_intervals() -> None:
    assert headline(sample_comparison()) == (
        "2 regressions beyond 5% (shares: by 1% of all): p99 ttft +27.4% (+12.1% to +44%); "
        "errors +2.7 points (+1.6 to +3.9 points)."
    )
    assert '<h1 class="bad">' in comparison_page(sample_comparison())


def test_without_a_regression_it_says_what_changed_all_the_same() -> None:
    found = sample_comparison()
    calm = replace(found, changes=tuple(replace(change, regression=False) for change in found.changes[:5]))
    assert headline(calm) == (
        "No regression beyond 5% was shown; better: p50 itl -10.8%; "
        "worse, but not significantly beyond that: p50 ttft +5.8%, p99 ttft +27.4%."
    )
    same = replace(found, changes=found.changes[4:6])
    assert headline(same) == "No regression beyond 5% was shown, nor any other change."
    assert 'class="bad"' not in comparison_page(same)


def test_each_figure_stands_in_its_unit_with_what_is_known_of_its_change() -> None:
    text = read(comparison_page(sample_comparison()))
    assert "p99 ttft 402 ms 512 ms +27.4% +12.1% to +44% 1,600 / 1,580 regression" in text
    assert "p99.9 ttft 900 ms 1.1 s – – 1,600 / 1,580 n/a (few)" in text
    assert "p99.9 ttft: it takes 2,995 requests" in text
    assert "output tokens 853 tokens/s 849 tokens/s -0.5% -2% to +1.1%" in text
    assert "goodput 96% 95.5% -0.5 points -1.8 to +0.8 points" in text


def test_warnings_and_runs_are_told() -> None:
    text = read(comparison_page(sample_comparison()))
    assert "Each side is one run: how much runs differ from one another by themselves can't be known." in text
    assert "before runs/main after runs/change" in text
    text = read(comparison_page(replace(sample_comparison(), served=("tea (bf16 weights)", "tea (int8 weights)"))))
    assert "before runs/main tea (bf16 weights) after runs/change tea (int8 weights)" in text


def test_names_of_runs_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, plan in (("run2", LoadPlan(seconds=10, drain_seconds=1)), ("my-first-run", LoadPlan(seconds=11))):
        write_run(Path(name), [record(session, session / 10) for session in range(30)], plan)
    found = compare([RunDirectory(Path("run2"))], [RunDirectory(Path("my-first-run"))])
    text = read(comparison_page(found))
    assert "The run run2 is unreliable" in text
    assert "The runs run2 and my-first-run have different plans" in text
    assert "Run2" not in text
    assert "My-first-run" not in text


def test_hostile_names_of_figures_and_runs_do_nothing() -> None:
    hostile = "</script><script>alert(1)</script>\x00"
    found = sample_comparison()
    changes = tuple(replace(change, metric=f"{hostile}{place}") for place, change in enumerate(found.changes))
    page = comparison_page(replace(found, before=(hostile,), warnings=(hostile,), changes=changes))
    assert PageReader(page).tags.count("script") <= PageReader(comparison_page(found)).tags.count("script")
    assert "alert(1)</script>␀" in read(page)


def test_nothing_to_compare_has_a_page_without_charts() -> None:
    page = comparison_page(Comparison((), (), 0.05, 0.01, 0.95, (), ()))
    assert "No regression beyond 5% was shown, nor any other change." in page
    assert len(page) < 100_000
