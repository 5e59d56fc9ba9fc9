"""Figures, the page of results, and the comparison of two of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import compare as compare_command
from benchmarks.compare import compare
from benchmarks.figures import Figure, Goal, report
from benchmarks.gateway_peers import equal_tokens
from benchmarks.results import Results, Run, collect, file_name, page

MACHINE = {"processor": "Xeon", "cores": "2"}
FIVE = (0.97, 0.98, 0.99, 1.0, 1.01)
LOWER = tuple(value - 0.1 for value in FIVE)


def results(*figures: Figure, processor: str = "Xeon") -> Results:
    return Results("2026-01-01", {**MACHINE, "processor": processor}, {"commit": "abc"}, {"end_to_end": figures}, {})


@pytest.mark.parametrize(
    ("goal", "met", "missed", "direction"),
    [(">= 0.98", 0.98, 0.979, 1), ("<= 5", 5.0, 5.01, -1), ("0.95 to 1.05", 1.05, 0.94, 0), ("<= -1.5", -2, -1, -1)],
)
def test_a_goal_bounds_the_median(goal: str, met: float, missed: float, direction: int) -> None:
    assert Figure("f", [-1e6, met, 1e6], goal).met is True
    assert Figure("f", [-1e6, missed, 1e6], goal).met is False
    assert Figure("f", [met], goal).direction == direction


def test_a_figure_without_a_goal_is_neither_met_nor_missed() -> None:
    assert Figure("f", [1.0]).met is None


@pytest.mark.parametrize("text", ["> 0.98", "0.98", ">= x", ""])
def test_another_goal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        Goal.parse(text)


def test_what_is_reported_is_collected_unless_it_is_older_or_failed(tmp_path: Path) -> None:
    kept = Figure("ratio", FIVE, ">= 0.98", "ms")
    for name in ("end_to_end", "batch.order", "client_cost"):
        report(tmp_path / file_name(name), [kept], {"any": "thing"})
    os.utime(tmp_path / file_name("batch.order"), (1000, 1000))
    (tmp_path / file_name("batch.peers")).write_text('{"figures": [{"name": "ratio", "values": []}]}')
    found = collect(Run(2000, {"client_cost": "failed with exit code 1"}, {"gateway_peers": "no vLLM"}), tmp_path)
    assert found.figures == {"end_to_end": [kept]}
    assert found.missing["client_cost"] == "failed with exit code 1"
    assert found.missing["gateway_peers"] == "no vLLM"
    assert "ratio" in found.missing["batch.peers"]
    assert found.missing["batch.order"] == found.missing["batch.million"] == "not run"
    assert Results.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_the_page_shows_every_figure_and_every_missing_benchmark() -> None:
    shown = page(
        replace(
            results(Figure("fast", FIVE, ">= 0.98"), Figure("slow", LOWER, ">= 0.98"), Figure("a | b", [1.0])),
            missing={"batch.order": "not run"},
        )
    )
    rows = [line for line in shown.splitlines() if line.startswith("| end_to_end")]
    assert ["met" in row for row in rows] == [True, False, False]
    assert ["MISSED" in row for row in rows] == [False, True, False]
    assert "1 of 2 goals met" in shown
    assert "| batch.order | not run |" in shown


@pytest.mark.parametrize(
    ("goal", "old", "new", "verdict"),
    [
        (">= 0.98", FIVE, LOWER, "worse"),
        (">= 0.98", LOWER, FIVE, "better"),
        ("<= 0.98", FIVE, LOWER, "better"),
        ("0.95 to 1.05", FIVE, LOWER, "changed"),
        ("", FIVE, LOWER, "changed"),
        (">= 0.98", FIVE, FIVE[::-1], "within noise"),
        (">= 0.98", FIVE, tuple(value - 0.02 for value in FIVE), "within noise"),
        (">= 0.98", FIVE, FIVE[:1], "too few repeats"),
        (">= 0.98", FIVE[:3], LOWER[:3], "too few repeats"),
        (">= 0.98", (1.0,) * 5, (1.0,) * 5, "within noise"),
    ],
)
def test_a_change_counts_only_beyond_noise(
    goal: str, old: tuple[float, ...], new: tuple[float, ...], verdict: str
) -> None:
    (change,) = compare(results(Figure("ratio", old, goal)), results(Figure("ratio", new, goal))).changes
    assert change.verdict == verdict


def test_a_comparison_names_what_else_differs() -> None:
    old = results(Figure("ratio", FIVE), Figure("gone", FIVE))
    new = results(Figure("ratio", FIVE), Figure("added", FIVE), processor="EPYC")
    found = compare(old, new)
    assert [change.name for change in found.changes] == ["ratio"]
    assert (found.only_old, found.only_new) == (["end_to_end: gone"], ["end_to_end: added"])
    assert found.notes == ["processor: Xeon and EPYC"]


def test_compare_reads_files_and_directories_and_fails_only_if_asked(tmp_path: Path) -> None:
    singles, good = tmp_path / "bench", tmp_path / "good"
    good.mkdir()
    figure = Figure("ratio", FIVE, ">= 0.98")
    (good / "RESULTS.json").write_text(json.dumps(results(figure).as_json()))
    report(singles / "end_to_end.json", [replace(figure, values=LOWER)])

    def run(*arguments: object) -> int:
        return CliRunner().invoke(compare_command.main, list(map(str, arguments))).exit_code

    assert run(good, singles) == 0
    assert run(good, singles, "--fail-on-regression") == 1
    assert run(singles, good / "RESULTS.json", "--fail-on-regression") == 0
    assert run(good, tmp_path) == 2
    shown = CliRunner().invoke(compare_command.main, [str(good), str(singles), "--json"])
    assert [change["verdict"] for change in json.loads(shown.stdout)["changes"]] == ["worse"]


def test_equal_tokens_counts_places_of_the_longer_answer() -> None:
    assert equal_tokens([([1, 2, 3], [1, 9, 3]), ([4], [4, 5])]) == 3 / 5
