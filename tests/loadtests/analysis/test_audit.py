"""What an audit says of runs and answers made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from loadtests.analysis.audit import AUDIT, AnswerFacts, answers_file
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import AuditCheck
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.record import RequestRecord
from loadtests.run_directory import RunDirectory
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import record, write_run

FAITHFUL = AnswerFacts(first_token_repeated=True, reported_tokens=8, counted_tokens=8, silent_tokens=1)
SECRETIVE = AnswerFacts(first_token_repeated=True, reported_tokens=8, counted_tokens=None, silent_tokens=None)


def answers(ttft: float = 0.1, gap: float = 0.02, **values: Any) -> list[RequestRecord]:
    return [record(i, i * 0.1, ttft=ttft, gaps=[gap] * 7, **values) for i in range(40)]


def audited(
    tmp_path: Path,
    run: Sequence[RequestRecord] | None = None,
    same: Sequence[RequestRecord] | None = None,
    facts: Sequence[AnswerFacts] = (FAITHFUL,) * 4,
    plan: LoadPlan | None = None,
    reference: float | None = None,
) -> dict[str, AuditCheck]:
    """The checks by the first three words of what they check."""
    directory = write_run(tmp_path / "run", answers() if run is None else run, plan or LoadPlan(seconds=10))
    inner = write_run(directory.path / AUDIT, answers() if same is None else same, plan or LoadPlan(seconds=10))
    inner.write_metadata({"reference_tokens": reference})
    answers_file(directory).write_text("".join(json.dumps(asdict(each)) + "\n" for each in facts))
    return {" ".join(check.name.split()[:3]): check for check in summarize(directory).audit}


def test_a_faithful_server_passes_every_check(tmp_path: Path) -> None:
    checks = audited(tmp_path, same=answers(ttft=0.085)).values()
    assert [(check.test, check.passed) for check in checks] == [
        ("TEST04", True),
        *[("TEST06", True)] * 4,
        ("TEST09", True),
    ]


@pytest.mark.parametrize(
    ("same", "passed", "cause"),
    [
        (answers(ttft=0.1, gap=0.019), True, ""),
        (answers(ttft=0.01), False, "prompts are cached"),
        (answers(ttft=0.01, gap=0.002), False, "answers may be cached"),
        (answers(input_tokens=20), None, "constant lengths"),
        (answers()[:19], None, "fewer than 20 requests"),
    ],
    ids=["noise", "prompt", "answer", "other length", "few"],
)
def test_a_sample_that_is_answered_faster_again_is_cached(
    tmp_path: Path, same: list[RequestRecord], passed: bool | None, cause: str
) -> None:
    check = audited(tmp_path, same=same)["the same sample"]
    assert check.passed is passed
    assert cause in check.note
    assert (check.value is None) is (passed is None)


@pytest.mark.parametrize(
    ("facts", "passed"),
    [
        (AnswerFacts(False, 8, 8, 0), [False, True, True]),
        (AnswerFacts(True, 8, 8, 2), [True, False, True]),
        (AnswerFacts(True, 9, 8, 0), [True, True, False]),
        (SECRETIVE, [True, None, None]),
    ],
    ids=["first token", "ends", "length", "not shown"],
)
def test_one_answer_that_is_not_as_it_was_reported_is_seen(
    tmp_path: Path, facts: AnswerFacts, passed: list[bool | None]
) -> None:
    others = SECRETIVE if facts is SECRETIVE else FAITHFUL
    found = list(audited(tmp_path, facts=[others, facts, others]).values())[1:4]
    assert [check.passed for check in found] == passed
    assert [check.value for check in found if check.passed is False] == [pytest.approx(2 / 3)] * passed.count(False)


@pytest.mark.parametrize(
    "lie",
    [{"output_tokens": 7}, {"output_tokens": 9}, {"output_tokens": 7, "finish_reason": "stop"}],
    ids=["cut but said to be whole", "longer than asked", "fewer than came"],
)
def test_reported_lengths_must_agree_with_what_came(tmp_path: Path, lie: dict[str, Any]) -> None:
    _, *others = answers()
    assert not audited(tmp_path, run=[*others, record(0, 0.0, gaps=[0.02] * 7, **lie)])["reported lengths agree"].passed


@pytest.mark.parametrize(
    ("tokens", "ignore_eos", "reference", "passed"),
    [
        (8, True, None, True),
        (7, True, None, False),
        (7, False, None, None),
        (7, False, 7.5, True),
        (7, False, 8.0, False),
        (8, False, 7.0, False),
        (8, True, 4.0, True),
    ],
)
def test_the_mean_length_is_near_what_was_asked_or_what_another_server_gives(
    tmp_path: Path, tokens: int, ignore_eos: bool, reference: float | None, passed: bool | None
) -> None:
    run = answers(output_tokens=tokens, finish_reason="stop")
    plan = LoadPlan(seconds=10, ignore_eos=ignore_eos)
    assert audited(tmp_path, run, plan=plan, reference=reference)["mean length of"].passed is passed


def test_a_file_that_is_none_of_an_audit_is_refused(tmp_path: Path) -> None:
    audited(tmp_path)
    with (tmp_path / "run" / AUDIT / "answers.jsonl").open("a") as file:
        file.write('{"wrong": 1}\n')
    with raises(LoadError, "run_damaged"):
        summarize(RunDirectory(tmp_path / "run"))
