"""Choices by log probability, and perplexity: metrics over a job that scores texts."""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.evaluate.compare import compare
from inflight.evaluate.evaluation import EvaluationDirectory
from inflight.evaluate.metrics import load_metrics, parse_metrics
from tests.evaluate.golden_sets import evaluate, golden, scoring
from tests.fixtures.errors import raises

QUIZ: list[dict[str, Any]] = [  # the scripted server finds the shortest choice the likeliest
    {"id": "a", "prompt": "2 + 2 =", "options": [" four", " a hundred", " 4"], "right": 2},
    {"id": "b", "prompt": "tea is", "options": [" hot", " made of leaves"], "right": " made of leaves"},
    {"id": "c", "prompt": "0 + 0 =", "options": ["10", "0"], "right": 0},  # a number is a place, not a text
    {"id": "d", "prompt": "0 + 0 =", "options": ["10", "0"], "right": "0"},
]


def test_choices_are_right_by_place_or_by_text(tmp_path: Path) -> None:
    wanted = scoring(golden(tmp_path, QUIZ), tmp_path / "run", ["choice-accuracy"], "right", "options")
    directory = evaluate(wanted, {})
    found = directory.read()
    scores = list(directory.read_scores(found))
    assert [each.scores for each in scores] == [{"choice-accuracy": value} for value in (1.0, 0.0, 0.0, 1.0)]
    assert [each.references for each in scores] == [["2"], ["1"], ["0"], ["1"]]
    assert scores[0].answer["log_probs"] == [-5.0, -10.0, -2.0]


def test_a_server_that_scores_all_choices_alike_fails_the_evaluation(tmp_path: Path) -> None:
    rows = [{"id": n, "prompt": "tea", "options": [" one", " two"], "right": n % 2} for n in range(4)]
    with raises(BatchError, "scores_alike"):
        evaluate(scoring(golden(tmp_path, rows), tmp_path / "run", ["choice-accuracy"], "right", "options"), {})
    assert not (tmp_path / "run" / "scores.jsonl").exists()


@pytest.mark.parametrize(
    "change",
    [{"right": 2}, {"right": "sweet"}, {"options": [" hot"]}, {"options": None}, {"options": [[1], [2]], "right": 0}],
)
def test_rows_whose_choices_do_not_have_the_right_one_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    source = golden(tmp_path, [QUIZ[0], QUIZ[1] | change])
    with raises(BatchError, "input_invalid", naming="line 2"):
        scoring(source, tmp_path / "run", ["choice-accuracy"], "right", "options").begin()


def test_perplexity_is_of_all_tokens_of_texts_or_of_references(tmp_path: Path) -> None:
    rows = [{"id": 1, "prompt": "a b", "answer": "c d e"}, {"id": 2, "prompt": "f", "answer": "g"}]
    for reference, value in ((None, (3 + 1) / 3), ("answer", (5 + 1) / 4)):
        out = tmp_path / str(reference)
        found = evaluate(scoring(golden(tmp_path, rows), out, ["perplexity"], reference), {}).read()
        assert found.metrics[0].value == pytest.approx(math.exp(value))


@pytest.mark.parametrize(
    ("load", "names"), [(load_metrics, "exact,perplexity"), (parse_metrics, "perplexity,choice-accuracy")]
)
def test_metrics_that_need_different_jobs_are_refused(load: Any, names: str) -> None:
    with raises(InflightError, "invalid_parameter"):
        load([names])


def test_perplexities_of_other_tokenizers_are_not_compared(tmp_path: Path) -> None:
    rows = [{"id": 1, "prompt": "a b"}, {"id": 2, "prompt": "c d e"}]
    one = evaluate(scoring(golden(tmp_path, rows), tmp_path / "one", ["perplexity"], None), {})
    assert compare(one, one, 2).rows == 2
    two = EvaluationDirectory(shutil.copytree(one.path, tmp_path / "two"))
    text = one.scores.read_bytes().replace(b'"tokens":[3]', b'"tokens":[4]')
    two.scores.write_bytes(text)
    known = one.read().model_copy(update={"scores_sha256": hashlib.sha256(text).hexdigest()})
    two.summary.write_text(known.model_dump_json())
    with raises(BatchError, "evaluations_differ", naming=("2", "3", "4")):
        compare(one, two, 2)
