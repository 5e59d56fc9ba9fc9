"""Verdicts are right as often as they say, for changes that a test has planted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inflight.evaluate.metrics import load_metrics
from inflight.evaluate.statistics import Verdict, adjust, change, paired_share_interval, value_interval, verdict

EXACT, F1, BLEU = load_metrics(["exact", "f1", "bleu"])
Values = NDArray[np.float64]


def table(values: Any) -> Values:
    return np.column_stack((values, np.ones(len(values))))


def noisy(random: np.random.Generator, rows: Values, share: float) -> Values:
    return np.where(random.random(len(rows)) < share, 1 - rows, rows)


def test_the_same_model_again_is_seldom_called_worse_and_planted_losses_are_found() -> None:
    found: dict[str, Counter[Verdict]] = {kind: Counter() for kind in ("same", "worse", "little")}
    for seed in range(200):
        random = np.random.default_rng(seed)
        right = (random.random(1000) < 0.7).astype(float)
        again = noisy(random, right, 0.05)
        for kind, before, lost in (("same", noisy(random, right, 0.05), 0), ("worse", again, 30), ("little", right, 2)):
            after = (again if kind == "same" else before).copy()
            after[random.choice(np.flatnonzero(after), lost, replace=False)] = 0
            found[kind][verdict(EXACT, change(EXACT, table(before), table(after), seed), 2)] += 1
    assert found["same"][Verdict.WORSE] <= 10
    assert found["worse"][Verdict.WORSE] >= 190
    assert found["little"] == {Verdict.EQUIVALENT: 200}


@pytest.mark.parametrize(
    ("shift", "expected", "least"),
    [(0.0, Verdict.EQUIVALENT, 38), (-0.05, Verdict.WORSE, 39), (0.05, Verdict.BETTER, 39)],
)
def test_graded_metrics_are_judged_by_a_paired_bootstrap(shift: float, expected: Verdict, least: int) -> None:
    found = Counter[Verdict]()
    for seed in range(40):
        random = np.random.default_rng(seed)
        base = random.random(300)
        before, after = (base + random.normal(0, 0.06, 300) for _ in range(2))
        found[verdict(F1, change(F1, table(before), table(after + shift), seed), 2)] += 1
    assert found[expected] >= least


@pytest.mark.parametrize("metric", [EXACT, F1, BLEU])
@pytest.mark.parametrize(("differ", "expected"), [(1, Verdict.UNKNOWN), (5, Verdict.UNKNOWN), (6, Verdict.WORSE)])
def test_fewer_rows_than_six_that_differ_are_no_loss(metric: Any, differ: int, expected: Verdict) -> None:
    if metric is BLEU:
        before, after = ([BLEU.measure("a b c d e", (end,))] * differ for end in ("a b c d e", "a b c f e"))
        assert verdict(metric, change(metric, np.array(before), np.array(after), 0), 2) == expected
    else:
        assert verdict(metric, change(metric, table(np.ones(differ)), table(np.zeros(differ)), 0), 2) == expected


@pytest.mark.parametrize("metric", [EXACT, F1])
@pytest.mark.parametrize(("rows", "expected"), [(60, Verdict.UNKNOWN), (200, Verdict.EQUIVALENT)])
def test_a_few_equal_rows_do_not_show_equivalence(metric: Any, rows: int, expected: Verdict) -> None:
    same = table(np.ones(rows))
    found = change(metric, same, same, 0)
    assert (verdict(metric, found, 2), found.p, found.churn) == (expected, 1.0, 0.0)
    assert found.detectable >= 600 / rows


def test_interval_of_paired_shares() -> None:
    none = paired_share_interval(0, 0, 100, 0.1)  # z² / (n + z²)
    assert (-none.low, none.high) == pytest.approx((2.63427,) * 2, abs=1e-4)
    both, mirrored = paired_share_interval(9, 3, 50, 0.05), paired_share_interval(3, 9, 50, 0.05)
    assert (both.low, both.high) == pytest.approx((-mirrored.high, -mirrored.low))
    random, covered = np.random.default_rng(0), 0
    for _ in range(300):
        harmful, beneficial, _ = random.multinomial(80, [0.1, 0.05, 0.85])
        interval = paired_share_interval(harmful, beneficial, 80, 0.05)
        covered += interval.low <= -5 <= interval.high
    assert covered >= 276


def test_flips_and_the_loss_that_rows_can_show() -> None:
    before, after = np.ones(400), np.ones(400)
    before[:3], after[3:11] = 0, 0
    found = change(EXACT, table(before), table(after), 0)
    assert (found.harmful, found.beneficial, found.churn) == (8, 3, 11 / 400)
    assert found.points == pytest.approx(-1.25)
    seen = 0
    for seed in range(100):  # a loss of that size, with the same churn
        random = np.random.default_rng(seed)
        lost = found.detectable / 100
        harmful, beneficial, _ = random.multinomial(400, [11 / 800 + lost / 2, 11 / 800 - lost / 2, 1 - 11 / 400])
        tried = np.ones(400), np.ones(400)
        tried[0][:beneficial], tried[1][beneficial : beneficial + harmful] = 0, 0
        seen += change(EXACT, table(tried[0]), table(tried[1]), 0).p < 0.05
    assert 65 <= seen <= 95


def test_more_metrics_need_stronger_signs() -> None:
    assert adjust([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_intervals_of_values_cover_them() -> None:
    random = np.random.default_rng(0)
    right = (random.random(500) < 0.9).astype(float)
    interval = value_interval(EXACT, table(right), 0)
    assert interval.low < right.mean() < interval.high < 1
    bleu = np.array([BLEU.measure("a b c d e f", (f"a b c d {word}",)) for word in "efghij" * 10])
    interval = value_interval(BLEU, bleu, 0)
    assert interval.low < BLEU.aggregate(bleu.sum(0).tolist()) < interval.high
