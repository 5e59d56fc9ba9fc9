"""Metrics count as the libraries do, to the last digit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jiwer
import pytest
from inflight_client import InflightError
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from inflight.evaluate import metrics
from inflight.evaluate.metrics import Statistics, load_metrics
from tests.fixtures.errors import raises

TEXTS = ("The cat sat on the mat.", "It's raining, isn't it?", "", "Ein Tee, bitte!", "a b c d e f g")
WANTED = (
    ("The cat sat on a mat.", "A cat was on the mat."),
    ("It rains, doesn't it?", "Is it raining?"),
    ("Nothing.", "None."),
    ("Einen Tee, bitte!", "Ein Tee, bitte!"),
    ("a b d c e f g", "g f e d c b a"),
)
FIRST = tuple(each[0] for each in WANTED)


def measured(name: str, wanted: Sequence[Sequence[str]] = WANTED) -> tuple[float, list[float]]:
    (metric,) = load_metrics([name])
    rows = [metric.measure(text, references) for text, references in zip(TEXTS, wanted, strict=True)]
    sums: Statistics = [math.fsum(column) for column in zip(*rows, strict=True)]
    return metric.aggregate(sums), [metric.row_value(row) for row in rows]


@pytest.mark.parametrize(
    ("name", "corpus", "sentence"), [("bleu", BLEU(), BLEU(effective_order=True)), ("chrf",) + 2 * (CHRF(),)]
)
@pytest.mark.parametrize("references", [1, 2])
def test_bleu_and_chrf_are_those_of_sacrebleu(name: str, corpus: BLEU, sentence: BLEU, references: int) -> None:
    wanted = [each[:references] for each in WANTED]
    streams = [[each[place] for each in wanted] for place in range(references)]
    rows = [sentence.sentence_score(text, each).score for text, each in zip(TEXTS, wanted, strict=True)]
    assert measured(name, wanted) == (corpus.corpus_score(TEXTS, streams).score, rows)


@pytest.mark.parametrize("name", ["rouge1", "rouge2", "rougeL"])
def test_rouge_is_the_mean_of_rouge_scores_best(name: str) -> None:
    scorer = RougeScorer([name])
    rows = [scorer.score_multi(each, text)[name].fmeasure for text, each in zip(TEXTS, WANTED, strict=True)]
    assert measured(name) == (math.fsum(rows) / len(rows), rows)


@pytest.mark.parametrize(("name", "library"), [("wer", jiwer.wer), ("cer", jiwer.cer)])
def test_error_rates_are_those_of_jiwer(name: str, library: object) -> None:
    assert callable(library)
    value, rows = measured(name, [each[:1] for each in WANTED])
    assert value == library(list(FIRST), list(TEXTS))
    assert rows == [library(wanted, text) for wanted, text in zip(FIRST, TEXTS, strict=True)]


@pytest.mark.parametrize(
    ("name", "text", "references", "value"),
    [
        ("exact", " Paris\n", ("Rome", "Paris"), 1.0),
        ("exact", "paris", ("Paris",), 0.0),
        ("f1", "the Eiffel tower, Paris", ("Eiffel Tower",), 0.8),
        ("f1", "", ("the",), 1.0),
        ("json-valid", '{"a": [1]}', (), 1.0),
        ("json-valid", "{'a': 1}", (), 0.0),
        ("regex:^[0-9]{2,3}$", "42", (), 1.0),
        ("regex", "I say 42.", (r"\b42\b", "43"), 1.0),
        ("perplexity", {"log_probs": [-9999.0], "tokens": [1]}, (), math.exp(700)),
    ],
)
def test_right_and_wrong_answers(name: str, text: object, references: tuple[str, ...], value: float) -> None:
    (metric,) = load_metrics([name])
    assert metric.row_value(metric.measure(text, references)) == pytest.approx(value)


@pytest.mark.parametrize(("name", "references"), [("regex:^(a|aa)+$", ()), ("regex", ("^(a|aa)+$",))])
def test_a_pattern_that_takes_too_long_is_named(
    name: str, references: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_MATCH_SECONDS", 0.05)
    (metric,) = load_metrics([name])
    with raises(InflightError, "invalid_parameter", naming="^(a|aa)+$"):
        metric.measure("a" * 60 + "!", references)


def test_a_pattern_may_have_commas_and_unknown_names_are_refused() -> None:
    assert [each.name for each in load_metrics(["exact,f1,regex:^a{1,2}$", "exact"])] == [
        "exact",
        "f1",
        "regex:^a{1,2}$",
    ]
    for wrong in ("blue", "exact:3", "regex:(", "regex:tea,f1"):
        with pytest.raises(InflightError) as caught:
            load_metrics([wrong])
        assert caught.value.code == "invalid_parameter"
