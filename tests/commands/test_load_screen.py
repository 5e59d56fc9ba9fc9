"""How the figures of load tests look on a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from rich.console import Console

from inflight.commands.load_screen import show, show_sweep
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
    said = shown(show, replace(summary, promise=(replace(plain, kept=True, found=0.25), replace(unsure, note=FEW))))
    assert "kept    p99 ttft <= 500ms (found 0.25)\n" in said
    assert f"p99 itl <= 50ms (found {unsure.found:.4g}; {FEW})\n" in said
    nothing = replace(unsure, found=None, kept=False, note="2 of 2 were lost")
    assert "BROKEN  p99 itl <= 50ms (2 of 2 were lost)\n" in shown(show, replace(summary, promise=(nothing,)))


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
    assert f"22.6 sessions/s, p95 ttft <= 500ms: {FEW}\n" in said
    assert f"32 sessions/s, p95 ttft <= 500ms: {FEW}\n" in said
    assert said.count(FEW) == 2, "the other runs lie far from the edge"
    said = shown(show_sweep, replace(found, confirmed=True))
    assert "Up to 22.6 sessions/s the promise holds" in said
    assert FEW not in said
