"""Only evaluations of the same rows, in the same order, by the same metrics are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.evaluate.compare import Drift, compare, parting
from inflight.evaluate.evaluation import EvaluationDirectory
from tests.evaluate.golden_sets import evaluate, golden, scoring
from tests.fixtures.errors import raises

ROWS: list[dict[str, Any]] = [{"id": f"r{n}", "prompt": f"tea {n}", "answer": f"tea {n}"} for n in range(20)]
FAILED = {"tea 3": InflightError("too long", "prompt_too_long")}


def evaluation(
    folder: Path, name: str, rows: list[dict[str, Any]], metrics: tuple[str, ...] = ("exact",), **answers: Any
) -> EvaluationDirectory:
    return evaluate(scoring(golden(folder, rows, f"{name}.jsonl"), folder / name, metrics), answers.get("answers", {}))


@pytest.mark.parametrize(
    ("rows", "options", "naming"),
    [
        (ROWS[:-1], {}, "r19"),
        ([*ROWS[:5], *ROWS[6:], ROWS[5]], {}, ("r5", "r6")),
        ([ROWS[0] | {"prompt": "coffee"}, *ROWS[1:]], {}, "r0"),
        (ROWS, {"answers": FAILED}, ("r3", "prompt_too_long")),
        (ROWS, {"metrics": ("exact", "f1")}, "f1"),
    ],
)
def test_other_rows_orders_answers_and_metrics_are_refused_by_name(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], naming: str | tuple[str, ...]
) -> None:
    one, two = evaluation(tmp_path, "one", ROWS), evaluation(tmp_path, "two", rows, **options)
    for pair in ((one, two), (two, one)):
        with raises(BatchError, "evaluations_differ", naming=naming):
            compare(*pair, 2)


def test_rows_that_failed_in_both_are_left_out(tmp_path: Path) -> None:
    one, two = (evaluation(tmp_path, name, ROWS, answers=FAILED) for name in ("one", "two"))
    found = compare(one, two, 2)
    assert (found.rows, found.failed, found.verdict, found.exit_code) == (19, 1, "cannot tell", 75)


def test_where_answers_part_and_how_close_the_tokens_were(tmp_path: Path) -> None:
    before: list[Any] = [(5, -0.1, {"5": -0.1, "6": -3.0}), (7, -0.7, {"7": -0.7, "8": -0.75})]
    later, first = parting(before, [before[0], (8, -0.6, {"8": -0.6})]), parting(before, [(9, -0.2, {"9": -0.2})])
    assert later == pytest.approx((1, 0.05))
    assert first == pytest.approx((0, 2.9))  # 9 was less likely than 6
    assert parting(before, before[:1]) is None
    assert parting([(5, -0.1, {"5": -0.1})], [(6, -0.1, {"6": -0.1})]) is None  # no tie: 6 may be far away
    found = Drift.of([(1, 0.05), (0, 2.9), (12, 0.01)])
    assert found == Drift(rows=3, equal_tokens=1, gap=0.05, ties=2)


def test_an_evaluation_that_is_not_finished_is_not_compared(tmp_path: Path) -> None:
    wanted = scoring(golden(tmp_path, ROWS), tmp_path / "open")
    wanted.begin()
    with raises(BatchError, "evaluation_not_found", naming="open"):
        compare(wanted.directory, wanted.directory, 2)
