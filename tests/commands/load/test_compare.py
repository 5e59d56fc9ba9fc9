"""`inflight load compare` of runs made by hand: what it prints and writes, and which exit code a pipeline sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from loadtests.plan import LoadPlan
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.load_runs import read_records, record, steady_generator, write_run

REQUESTS = 300
SECONDS = 10
SIDES = {"before": 1.0, "same": 1.0, "slower": 1.2}
"""How much slower than the first each side's runs are."""
PLAN = LoadPlan(seconds=SECONDS, workload=WorkloadSpec(output_tokens="16"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of each side, such as `before1` and `before2`, and a directory that is no run."""
    place = tmp_path_factory.mktemp("runs")
    (place / "nothing").mkdir()
    for number, (side, slower) in enumerate(SIDES.items()):
        for repeat in (1, 2):
            make_run(place / f"{side}{repeat}", slower, [number, repeat])
    return place


def make_run(path: Path, slower: float, seed: list[int]) -> None:
    """Answers of five tokens, whose latencies vary by a tenth."""
    random = np.random.default_rng(seed)
    noise = slower * np.exp(0.1 * random.normal(size=REQUESTS))
    due = np.sort(random.uniform(0, SECONDS - 1, REQUESTS))
    answers: Iterable[tuple[int, float, float]] = zip(range(REQUESTS), due.tolist(), noise.tolist(), strict=True)
    records = [record(session, at, ttft=0.1 * long, gaps=[0.02 * long] * 4) for session, at, long in answers]
    write_run(path, records, generator=steady_generator(SECONDS, REQUESTS))


@pytest.fixture
def load(runner_of: Callable[[str], CommandRunner], monkeypatch: pytest.MonkeyPatch, place: Path) -> CommandRunner:
    """`inflight load ...` where the runs are."""
    monkeypatch.chdir(place)
    return runner_of("load")


def test_a_regression_is_named_and_fails(load: CommandRunner) -> None:
    done = load("compare", "before1", "--with", "slower1")
    assert (done.code, done.err) == (1, "")
    rows = {" ".join(line.split()[:2]): line for line in done.out.splitlines() if line.strip()}
    for figure in ("p50 ttft", "p50 itl", "p50 e2e"):
        assert "REGRESSION" in rows[figure]
    _, _, before, _, after, *_ = rows["p50 ttft"].split()
    assert [float(before), float(after)] == pytest.approx([100, 120], rel=0.03)  # ms
    assert "figures worse by more than 5% with confidence" in done.out


@pytest.mark.parametrize("after", ["same1", "before1"])
def test_without_a_regression_it_succeeds(load: CommandRunner, after: str) -> None:
    done = load("compare", "slower1" if after == "before1" else "before1", "--with", after)
    assert (done.code, done.err) == (0, "")
    assert "No figure is worse by more than 5% with confidence." in done.out
    assert "REGRESSION" not in done.out
    assert ("better" in done.out) is (after == "before1")


def test_the_threshold_says_how_much_worse_is_a_regression(load: CommandRunner) -> None:
    done = load("compare", "before1", "--with", "slower1", "--threshold", "0.5")
    assert done.code == 0
    assert "worse" in done.out
    assert "No figure is worse by more than 50% with confidence." in done.out


def test_json_is_one_object_with_every_figure_and_both_sides(load: CommandRunner, place: Path) -> None:
    page = place / "compared.html"
    done = load("compare", "before1", "before2", "--with", "slower1", "--with", "slower2", "--json", "--out", str(page))
    assert done.code == 1
    found = json.loads(done.out)
    assert [Path(run).name for run in found["before"] + found["after"]] == ["before1", "before2", "slower1", "slower2"]
    changes = {change["metric"]: change for change in found["changes"]}
    ttft = changes["p50 ttft"]
    assert (ttft["verdict"], ttft["regression"]) == ("worse", True)
    assert 1.05 < ttft["low"] <= ttft["change"] <= ttft["high"]
    assert ttft["change"] == pytest.approx(1.2, rel=0.05)
    assert ttft["samples_before"] == ttft["samples_after"] == 2 * REQUESTS
    assert (changes["error_rate"]["change"], changes["error_rate"]["regression"]) == (0, False)
    # What it says of the page is no part of the JSON.
    assert done.err == f"Report: {page}\n"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "p50 ttft" in text
    assert "slower2" in text


def test_a_single_run_a_side_is_warned_of_and_several_are_not(load: CommandRunner) -> None:
    single = load("compare", "before1", "--with", "same1")
    several = load("compare", "before1", "before2", "--with", "same1", "--with", "same2")
    assert single.code == several.code == 0
    warned = [[line for line in done.out.splitlines() if line.startswith("Warning: ")] for done in (single, several)]
    assert len(warned[0]) > len(warned[1])


def test_runs_of_unlike_plans_are_shown_and_not_judged_unless_that_is_asked_for(
    load: CommandRunner, place: Path
) -> None:
    write_run(
        place / "unlike",
        read_records(RunDirectory(place / "slower1")),
        PLAN,
        generator=steady_generator(SECONDS, REQUESTS),
    )
    done = load("compare", "before1", "--with", "unlike")
    assert done.code == 2
    assert "--allow-different-plans" in done.err
    assert "REGRESSION" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80, "no verdict is so long that the table wraps"
    allowed = load("compare", "before1", "--with", "unlike", "--allow-different-plans")
    assert allowed.code == 1
    assert "REGRESSION" in allowed.out


WRONG = {
    "no run": (["nothing", "--with", "same1"], 1, "nothing is not the directory of a run"),
    "no run after": (["before1", "--with", "nothing"], 1, "nothing is not the directory of a run"),
    "not the directory": (["nowhere", "--with", "same1"], 2, "'nowhere' does not exist"),
    "one side": (["before1", "same1"], 2, "Missing option '--with'"),
    "threshold": (["before1", "--with", "same1", "--threshold", "-1"], 2, "-1.0 is not in the range"),
    "no place for the page": (
        ["before1", "--with", "same1", "--out", "nowhere/page.html"],
        2,
        "nowhere/page.html: No such file or directory",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_be_compared_is_told_in_one_sentence(load: CommandRunner, name: str) -> None:
    arguments, code, words = WRONG[name]
    done = load("compare", *arguments)
    assert done.code == code, done
    (sentence,) = [line for line in done.err.splitlines() if line and not line.startswith(("Usage:", "Try "))]
    assert sentence.startswith("Error: ")
    assert words in sentence


def test_help_has_examples(load: CommandRunner) -> None:
    done = load("compare", "--help")
    assert (done.code, done.err) == (0, "")
    assert "\n    inflight load compare before --with after\n" in done.out
    assert "--threshold 0.02" in done.out


def test_too_few_requests_to_judge_are_inconclusive(load: CommandRunner, place: Path) -> None:
    for name in ("few1", "few2"):
        if not (place / name).exists():
            records = [record(number, number * 0.5, ttft=0.1, gaps=[0.02] * 4) for number in range(8)]
            write_run(place / name, records, generator=steady_generator(SECONDS, 8))
    done = load("compare", "few1", "--with", "few2")
    assert done.code == 2
    assert "INCONCLUSIVE" in done.out
    assert load("compare", "few1", "--with", "few2", "--allow-inconclusive").code == 0
