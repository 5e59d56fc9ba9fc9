"""How the figures of load tests look on a terminal."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from rich.console import Console

from inflight.commands.load.display import show_progress, show_summary, show_sweep
from loadtests.analysis.summary import SloResult
from loadtests.plan import LoadPlan
from loadtests.report.page import run_page, sweep_page
from loadtests.report.sweep import not_converged_text, slo_notes, sweep_headline, validity_notes
from loadtests.run.controller import RunProgress
from tests.fixtures.load_summaries import sample_sweep, typical_summary
from tests.fixtures.page_reader import read

Figures = TypeVar("Figures")
FEW = "160 requests are too few for 95% confidence; at least 299 are needed"


def shown(show: Callable[[Figures, Console], None], figures: Figures) -> str:
    said = io.StringIO()
    show(figures, Console(file=said, width=200))
    return said.getvalue()


def test_a_bound_stands_with_what_was_found_and_what_makes_it_unsure() -> None:
    summary = typical_summary()
    plain, unsure = summary.slo
    assert unsure.value
    bounds = (replace(plain, met=True, value=0.25), replace(unsure, value=1.25, met=False, note=FEW))
    rate = SloResult("error_rate <= 1%", 0.0312, 0.01, False)
    said = shown(show_summary, replace(summary, slo=(*bounds, rate)))
    assert "met     p99 ttft <= 500ms (found 250 ms)\n" in said
    assert f"MISSED  p99 itl <= 50ms (found 1.25 s; {FEW})\n" in said
    assert "MISSED  error_rate <= 1% (found 3.1%)\n" in said
    nothing = replace(unsure, value=None, met=False, note="2 of 2 were lost")
    assert "MISSED  p99 itl <= 50ms (2 of 2 were lost)\n" in shown(show_summary, replace(summary, slo=(nothing,)))


def test_what_was_served_and_how_long_prompts_were_stands_before_the_times() -> None:
    served = {"served": {"model": "tea", "precision": "bf16", "kv_cache_precision": "u8", "max_sequences": 64}}
    tokens = typical_summary().tokens
    assert tokens is not None
    tokens = replace(tokens, input_per_request=357.0, first_input=357.0, first_input_requested=128.0)
    summary = replace(typical_summary(), metadata={**typical_summary().metadata, **served}, tokens=tokens)
    said = shown(show_summary, summary)
    assert said.startswith("tea (bf16 weights, u8 KV cache, at most 64 sequences)\n")
    assert "input 357 tokens a request (asked for 128; give --tokenizer)\n" in said
    assert "Input tokens 357 a request; asked for 128; give --tokenizer" in read(run_page(summary))
    near = replace(summary, tokens=replace(tokens, input_per_request=130.0, first_input=130.0))
    assert "input 130 tokens a request\n" in shown(show_summary, near)
    assert "Input tokens 130 a request ITL" not in read(run_page(near))
    assert "asked for" not in read(run_page(near))


def test_a_bound_that_could_not_be_judged_is_none_that_was_kept() -> None:
    (plain, unsure) = typical_summary().slo
    bounds = (replace(plain, met=True), replace(unsure, met=False, evaluated=False, note="tokens came in bunches"))
    notes = ("62% of the gaps were short",)
    summary = replace(typical_summary(), slo=bounds, validity=replace(typical_summary().validity, notes=notes))
    said, page = shown(show_summary, summary), read(run_page(summary))
    assert "NOT EVALUATED  p99 itl <= 50ms" in said
    assert "NOTE: 62% of the gaps were short\n" in said
    assert "the SLO could not be evaluated (p99 itl ≤ 50ms)" in page
    assert "62% of the gaps were short." in page
    assert "UNRELIABLE" not in said


def test_goodput_is_told_of_sent_and_of_completed() -> None:
    assert "goodput 12.80 requests/s: 93.9% of sent, 96.2% of completed" in shown(show_summary, typical_summary())


def test_a_sweep_says_what_its_page_says() -> None:
    found = sample_sweep()
    grade = replace(found.steps[0].summary.validity, reasons=("it was late",))
    steps = tuple(
        replace(step, summary=replace(step.summary, slo=(replace(step.summary.slo[0], note=FEW),), validity=grade))
        for step in found.steps
    )
    found = replace(found, steps=steps, converged=False)
    said, page = " ".join(shown(show_sweep, found).split()), read(sweep_page(found))
    for words in (*(sweep_headline(found), not_converged_text(found)), *(*slo_notes(found), *validity_notes(found))):
        assert words in said
        assert words in page
    assert "(seen once)" in said
    assert "USD" in said
    assert said.count(FEW) == 1, "a note is said once, and the other runs lie far from the edge"
    assert "UNRELIABLE: At " in said


def test_missing_figures_of_the_server_are_told() -> None:
    assert "--metrics-url" not in shown(show_summary, typical_summary())
    assert "--metrics-url" in shown(show_summary, replace(typical_summary(), server=None))


def test_a_pipe_gets_a_line_every_ten_seconds_and_one_of_what_came_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with show_progress(LoadPlan(seconds=30, slo=("p99 ttft <= 500ms",)), "run 2, 14.8 sessions/s") as screen:
        for t in (None, 0.0, 0.3, 9.9, 10.1, 10.4, 19.9, 20.2, 30.1):
            screen(RunProgress(t, 2, 3, Counter(completed=round(t or 0))))
    screen.finish(typical_summary())
    lines = capsys.readouterr().err.splitlines()
    assert lines[:-1] == [
        "run 2, 14.8 sessions/s: 10 of 30 s: 2 open, 10 completed",
        "run 2, 14.8 sessions/s: 20 of 30 s: 2 open, 20 completed",
    ]
    assert lines[-1].startswith("run 2, 14.8 sessions/s: 1600 of 1680 requests completed, p99 TTFT ")
    assert lines[-1].endswith(", SLO missed")
