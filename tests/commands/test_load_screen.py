"""How the figures of load tests look on a terminal."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from rich.console import Console

from inflight.commands.load_screen import following, show, show_sweep
from loadtests.analysis.summary import Bound
from loadtests.conductor import Progress
from loadtests.plan import Plan
from loadtests.report.page import run_page
from tests.loadtests.report.reader import read
from tests.loadtests.report.summaries import sweep, usual

Figures = TypeVar("Figures")
FEW = "160 requests are too few to be 95% sure: it takes 299"


def shown(show: Callable[[Figures, Console], None], figures: Figures) -> str:
    said = io.StringIO()
    show(figures, Console(file=said, width=200))
    return said.getvalue()


def test_a_bound_stands_with_what_was_found_and_what_makes_it_unsure() -> None:
    summary = usual()
    plain, unsure = summary.promise
    assert unsure.found
    bounds = (replace(plain, kept=True, found=0.25), replace(unsure, found=1.25, kept=False, note=FEW))
    rate = Bound("error_rate <= 1%", 0.0312, 0.01, False)
    said = shown(show, replace(summary, promise=(*bounds, rate)))
    assert "kept    p99 ttft <= 500ms (found 250 ms)\n" in said
    assert f"BROKEN  p99 itl <= 50ms (found 1.25 s; {FEW})\n" in said
    assert "BROKEN  error_rate <= 1% (found 3.1%)\n" in said
    nothing = replace(unsure, found=None, kept=False, note="2 of 2 were lost")
    assert "BROKEN  p99 itl <= 50ms (2 of 2 were lost)\n" in shown(show, replace(summary, promise=(nothing,)))


def test_what_was_served_and_how_long_prompts_were_stands_before_the_times() -> None:
    served = {"served": {"model": "tea", "precision": "bf16", "kv_cache_precision": "u8", "max_sequences": 64}}
    tokens = replace(usual().tokens, input_per_request=357.0, first_input=357.0, first_input_asked=128.0)
    summary = replace(usual(), facts={**usual().facts, **served}, tokens=tokens)
    said = shown(show, summary)
    assert said.startswith("tea (bf16 weights, u8 KV cache, at most 64 sequences)\n")
    assert "input 357 tokens a request (asked for 128; give --tokenizer)\n" in said
    assert "Input tokens 357 a request; asked for 128; give --tokenizer" in read(run_page(summary))
    near = replace(summary, tokens=replace(tokens, input_per_request=130.0, first_input=130.0))
    assert "input 130 tokens a request\n" in shown(show, near)
    assert "Input tokens 130 a request ITL" not in read(run_page(near))
    assert "asked for" not in read(run_page(near))


def test_a_bound_that_could_not_be_judged_is_none_that_was_kept() -> None:
    (plain, unsure) = usual().promise
    bounds = (replace(plain, kept=True), replace(unsure, kept=False, judged=False, note="tokens came in bunches"))
    notes = ("62% of the gaps were short",)
    summary = replace(usual(), promise=bounds, grade=replace(usual().grade, notes=notes))
    said, page = shown(show, summary), read(run_page(summary))
    assert "NOT JUDGED  p99 itl <= 50ms" in said
    assert "NOTE: 62% of the gaps were short\n" in said
    assert "the promise could not be judged (p99 itl ≤ 50ms)" in page
    assert "62% of the gaps were short." in page
    assert "NOT TO BE TRUSTED" not in said


def test_goodput_is_told_of_sent_and_of_completed() -> None:
    assert "goodput 12.80 requests/s: 93.9% of sent, 96.2% of completed" in shown(show, usual())


def test_a_sweep_says_whether_its_answer_was_seen_once_and_what_makes_the_edge_unsure() -> None:
    found = sweep()
    steps = tuple(
        replace(step, summary=replace(step.summary, promise=(replace(step.summary.promise[0], note=FEW),)))
        for step in found.steps
    )
    said = shown(show_sweep, replace(found, steps=steps))
    assert "Up to 22.6 sessions/s (seen once) the promise holds" in said
    assert f"22.6 and 32 sessions/s, p95 ttft <= 500ms: {FEW}\n" in said
    assert said.count(FEW) == 1, "a note is said once, and the other runs lie far from the edge"
    said = shown(show_sweep, replace(found, confirmed=True))
    assert "Up to 22.6 sessions/s the promise holds" in said
    assert FEW not in said


def test_a_pipe_gets_a_line_every_ten_seconds_and_one_of_what_came_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with following(Plan(seconds=30, promise=("p99 ttft <= 500ms",)), "run 2, 14.8 sessions/s") as screen:
        for t in (None, 0.0, 0.3, 9.9, 10.1, 10.4, 19.9, 20.2, 30.1):
            screen(Progress(t, 2, 3, Counter(completed=round(t or 0))))
    screen.ended(usual())
    lines = capsys.readouterr().err.splitlines()
    assert lines[:-1] == [
        "run 2, 14.8 sessions/s: 10 of 30 s: 2 open, 10 completed",
        "run 2, 14.8 sessions/s: 20 of 30 s: 2 open, 20 completed",
    ]
    assert lines[-1].startswith("run 2, 14.8 sessions/s: 1600 of 1680 requests completed, p99 TTFT ")
    assert lines[-1].endswith(", promise broken")
