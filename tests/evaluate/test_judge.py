"""A judge's verdicts: what they give an answer, and how far they can be believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import RunOptions
from inflight.batch.runner import JobRunner
from inflight.evaluate.evaluation import JudgeSummary
from inflight.evaluate.judge import Judge, Judgement, Pair
from tests.batch.scripted_backend import ScriptedBackend
from tests.evaluate.golden_sets import evaluate, golden, scoring
from tests.fixtures.errors import raises

PAIRS = [
    Pair(0, "one?", "long answer", "short", {}),
    Pair(3, "two?", "no", "a longer one", {}),
    Pair(5, "three?", "x", "x", {}),
]


def longer(a: str, b: str) -> str:
    return "tie" if len(a) == len(b) else "A" if len(a) > len(b) else "B"


def judged(folder: Path, verdict: Callable[[str, str], str]) -> tuple[dict[int, Judgement], JudgeSummary]:
    async def answer(server: ScriptedBackend, prompt: str) -> str | InflightError:
        a, _, b = prompt.partition("|")
        found = verdict(a, b)
        return json.dumps({"verdict": found}) if found else InflightError("the time was over", "deadline_exceeded")

    judge = Judge(RunOptions(max_attempts=1), "{{ a }}|{{ b }}")
    job = judge.job(PAIRS, folder)
    assert job is not None
    JobRunner(job, JobDirectory.from_output(job.output), backends=[ScriptedBackend(answer)]).run()
    found = judge.judgements(job)
    return found, judge.summary(job, found.values())


def test_an_answer_that_is_better_in_both_orders_gets_1_and_one_that_is_worse_0(tmp_path: Path) -> None:
    found, summary = judged(tmp_path, longer)
    assert {number: each.value for number, each in found.items()} == {0: 1.0, 3: 0.0, 5: 0.5}
    assert (summary.pairs, summary.agreement, summary.prefers_first) == (3, 1.0, 0.5)


def test_a_judge_that_always_takes_the_first_answer_decides_nothing(tmp_path: Path) -> None:
    found, summary = judged(tmp_path, lambda a, b: "A")
    assert {each.value for each in found.values()} == {0.5}
    assert (summary.pairs, summary.agreement, summary.prefers_first) == (3, 0.0, 1.0)


def test_a_pair_without_both_verdicts_has_no_value(tmp_path: Path) -> None:
    found, summary = judged(tmp_path, lambda a, b: "" if a == "short" else longer(a, b))
    assert (found[0].value, found[0].code, summary.pairs) == (None, "deadline_exceeded", 2)


def test_an_evaluation_has_the_judges_value_of_each_row_and_why_one_has_none(tmp_path: Path) -> None:
    rows = [{"id": n, "prompt": f"p{n}", "answer": "tea", "hint": "black" if n else None} for n in range(3)]
    address = "openai+https://judge.example/v1?key=TEA_KEY"
    judge = Judge(RunOptions(servers=(address,), max_attempts=1), "{{ request }}{{ hint }}|{{ a }}|{{ b }}")
    wanted = replace(scoring(golden(tmp_path, rows), tmp_path / "out", ("judge", "exact")), judge=judge)

    async def prefers_tea(server: ScriptedBackend, prompt: str) -> str | InflightError:
        _, a, b = prompt.split("|")
        return json.dumps({"verdict": "tie" if a == b else "A" if a == "tea" else "B"})

    evaluate(wanted, {"p1": "coffee", "p2": "tea"}, judge=ScriptedBackend(prefers_tea))
    evaluation = wanted.directory.read()
    scored = [*wanted.directory.read_scores(evaluation)]
    assert [row.scores and row.scores["judge"] for row in scored] == [None, 0.0, 0.5]
    assert (scored[0].code, evaluation.scored) == ("row_invalid", 2), "its hint is null, so the rubric can't show it"
    assert evaluation.judge is not None
    assert (evaluation.judge.pairs, evaluation.judge.agreement) == (2, 1.0)
    assert evaluation.judge.job["run_options"]["servers"] == [address], "a gate needs it whole"
    values = {metric.name: (metric.value, metric.signature) for metric in evaluation.metrics}
    assert values["judge"][0] == 0.25
    assert f"model:{evaluation.judge.model}" in values["judge"][1]


def test_another_rubric_or_judge_does_not_take_over_verdicts(tmp_path: Path) -> None:
    judges = [
        Judge(RunOptions(), "{{ a }}|{{ b }}"),
        Judge(RunOptions(), "{{ a }} or {{ b }}"),
        Judge(RunOptions(servers=("other:1",)), "{{ a }}|{{ b }}"),
    ]
    jobs = [judge.job(PAIRS, tmp_path) for judge in (*judges, judges[0])]
    assert len({job.output.address for job in jobs if job is not None}) == 3
    assert judges[0].job([], tmp_path) is None


@pytest.mark.parametrize("text", ["{{ a }} is good?", "{{ request }}", "{{ a"])
def test_a_rubric_must_show_both_answers(text: str) -> None:
    with raises(BatchError, "input_invalid"):
        Judge(RunOptions(), text).template()


def test_the_rubric_of_the_product_shows_the_request_and_both_answers() -> None:
    text = Judge(RunOptions()).template().render({"request": "why?", "a": "{{ b }}", "b": "because"})
    assert all(each in text for each in ("why?", "{{ b }}", "because"))
