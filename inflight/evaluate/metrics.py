"""The metrics of evaluations: what they measure in a row, and how rows are summed up.

A metric measures a row as a few numbers whose sums over rows give the metric's value, so that any sample of rows, as in
a bootstrap, has its value at the price of a sum. That is also how sacrebleu computes BLEU and chrF of a corpus.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inflight_client import InflightError
from inflight_client.validation import shorten

from inflight.batch.errors import package_missing
from inflight.batch.job.spec import Task
from inflight.batch.row_formats.answer_check import is_json
from inflight.common.suggestions import nearest

CHOICE_METRICS = ("choice-accuracy", "choice-accuracy-norm")
Statistics = Sequence[float]
"""What a metric measures in a row, or the sums over rows."""


def mean(sums: Statistics) -> float:
    """Return the first sum by the second, as most metrics aggregate."""
    return sums[0] / sums[1] if sums[1] else float(sums[0] > 0)


def percent(share: float) -> float:
    return 100 * share


@dataclass(frozen=True)
class Metric:
    """A metric. `measure` gets the text of an answer, or what a job of the task `score` wrote, and the references.

    `points` turns a value into points, the unit of margins and changes: 0 to 100 for a metric that is `bounded`.
    `binary`: a row is right or wrong. `references`: how many a row has, at most; `needs_reference`: at least one.
    `signature`: what must be equal for two values to be comparable. `check` raises InflightError for a reference with
    which nothing can be measured.
    """

    name: str
    signature: str
    measure: Callable[[Any, Sequence[str]], Statistics]
    aggregate: Callable[[Statistics], float] = mean
    row_value: Callable[[Statistics], float] = mean
    points: Callable[[float], float] = percent
    task: Task = "generate"
    references: float = math.inf
    needs_reference: bool = True
    binary: bool = False
    bounded: bool = True
    higher_is_better: bool = True
    check: Callable[[str], object] = str

    @property
    def sign(self) -> int:
        """1 if higher values are better, else -1."""
        return 1 if self.higher_is_better else -1


def load_metrics(names: Sequence[str]) -> list[Metric]:
    """Return the metrics: names of `METRICS`, several with commas between them, and `regex:PATTERN`, which may have
    commas itself. They are all of one task, since an evaluation is one job.

    Raises InflightError `invalid_parameter`, and BatchError `package_missing`.
    """
    metrics = parse_metrics(names)
    for other in metrics:
        if other.task != metrics[0].task:
            raise InflightError(
                f"{metrics[0].name} and {other.name} need different jobs, one that generates and one that scores; make"
                " an evaluation for each",
                "invalid_parameter",
            )
    return metrics


def parse_metrics(names: Sequence[str]) -> list[Metric]:
    """Return the metrics, of any tasks. Raises as `load_metrics` does."""
    found = []
    for name in names:
        listed, colon, pattern = name.partition("regex:")
        if (last := pattern.rpartition(",")[2].strip()) in METRICS and "," in pattern:
            raise InflightError(
                f"all of {pattern!r} is the pattern of regex; give {last} before it, or in a --metric of its own",
                "invalid_parameter",
            )
        found += [part.strip() for part in listed.split(",") if part.strip()] + [f"regex:{pattern}"] * bool(colon)
    if "perplexity" in found and not set(CHOICE_METRICS).isdisjoint(found):
        raise InflightError("perplexity is not one of choices; make an evaluation for each", "invalid_parameter")
    return [_metric(name) for name in dict.fromkeys(found)]


def _metric(name: str) -> Metric:
    kind, colon, argument = name.partition(":")
    if kind not in METRICS or (colon and kind != "regex"):
        meant = nearest(kind, METRICS)
        hint = f"; you may mean {meant}" if meant else ""
        raise InflightError(f"{name!r} is not a metric{hint}; give some of {', '.join(METRICS)}", "invalid_parameter")
    try:
        return METRICS[kind](name, argument)
    except ImportError as error:
        raise package_missing(f"the metric {kind}", error, str(error.name), "evaluate") from None


def _best(score: Callable[[str, str], float]) -> Callable[[str, Sequence[str]], Statistics]:
    """Return the measure of a metric that has a score for a text and a reference: the best one of the references."""
    return lambda text, references: (max(score(text, reference) for reference in references), 1.0)


def _exact(name: str, _: str) -> Metric:
    return Metric(name, "exact|strip", _best(lambda text, wanted: float(text.strip() == wanted.strip())), binary=True)


def _json_valid(name: str, _: str) -> Metric:
    return Metric(name, name, lambda text, _: (float(is_json(text)), 1.0), needs_reference=False, binary=True)


_MATCH_SECONDS = 1.0


def _regex(name: str, pattern: str) -> Metric:
    import regex

    def compiled(pattern: str) -> regex.Pattern[str]:
        try:
            return regex.compile(pattern)
        except regex.error as error:
            raise InflightError(
                f"{pattern!r} is not a regular expression ({error}); correct it", "invalid_parameter"
            ) from None

    def found(pattern: str, text: str) -> float:
        try:
            return float(compiled(pattern).search(text, timeout=_MATCH_SECONDS) is not None)
        except TimeoutError:
            raise InflightError(
                f"the regular expression {shorten(pattern)} takes more than {_MATCH_SECONDS:g} s for the answer"
                f" {shorten(text)}; write one without a repetition of repetitions",
                "invalid_parameter",
            ) from None

    if not pattern:
        return Metric(name, name, _best(lambda text, wanted: found(wanted, text)), binary=True, check=compiled)
    compiled(pattern)
    return Metric(name, name, lambda text, _: (found(pattern, text), 1.0), needs_reference=False, binary=True)


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def _words(text: str) -> Counter[str]:
    return Counter(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _token_f1(text: str, reference: str) -> float:
    """Return the F1 of the words of both, without case, punctuation and articles, as SQuAD computes it."""
    ours, theirs = _words(text), _words(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total())


def _f1(name: str, _: str) -> Metric:
    return Metric(name, "f1|squad", _best(_token_f1))


def _rouge(name: str, _: str) -> Metric:
    from importlib.metadata import version

    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([name])
    signature = f"{name}|fmeasure|stemmer:no|version:{version('rouge-score')}"
    return Metric(name, signature, _best(lambda text, wanted: float(scorer.score(wanted, text)[name].fmeasure)))


def _bleu(name: str, _: str) -> Metric:
    from sacrebleu.metrics.bleu import BLEU

    return _of_corpus(name, BLEU(), BLEU(effective_order=True))


def _chrf(name: str, _: str) -> Metric:
    from sacrebleu.metrics.chrf import CHRF

    return _of_corpus(name, CHRF(), CHRF())


def _of_corpus(name: str, corpus: Any, sentence: Any) -> Metric:
    """Return a metric of sacrebleu. Its statistics are private there, as its own paired tests use them; the version is
    pinned for that."""

    def measure(text: str, references: Sequence[str]) -> Statistics:
        (statistics,) = corpus._extract_corpus_statistics([text], [[reference] for reference in references])
        return [float(each) for each in statistics]

    def score(scorer: Any) -> Callable[[Statistics], float]:
        return lambda sums: float(scorer._compute_score_from_stats([round(each) for each in sums]).score)

    corpus.num_refs = "var"
    return Metric(name, str(corpus.get_signature()), measure, score(corpus), score(sentence), points=float)


def _errors(name: str, _: str) -> Metric:
    from importlib.metadata import version

    import jiwer

    process: Any = jiwer.process_words if name == "wer" else jiwer.process_characters

    def measure(text: str, references: Sequence[str]) -> Statistics:
        (reference,) = references
        found = process(reference, text)
        missed = found.substitutions + found.deletions
        return (float(missed + found.insertions), float(missed + found.hits))

    return Metric(name, f"{name}|version:{version('jiwer')}", measure, references=1, higher_is_better=False)


_LARGEST_EXPONENT = 700.0
"""Some servers report -9999 for what is impossible, of which no float has the exponential."""


def _perplexity(name: str, _: str) -> Metric:
    def measure(answer: Mapping[str, Any], _: Sequence[str]) -> Statistics:
        return (-math.fsum(answer["log_probs"]), float(sum(answer["tokens"])))

    def value(sums: Statistics) -> float:
        return math.exp(min(sums[0] / sums[1], _LARGEST_EXPONENT))

    return Metric(
        *(name, "perplexity|tokens", measure, value, value),
        points=lambda perplexity: 100 * math.log(perplexity),
        task="score",
        references=1,
        needs_reference=False,
        bounded=False,
        higher_is_better=False,
    )


def likeliest(answer: Mapping[str, Any], by_byte: bool = False) -> int:
    """Return the place of the likeliest choice, the first of equal ones; `by_byte`: without regard to lengths."""
    scores = [
        score / max(1, size) if by_byte else score
        for score, size in zip(answer["log_probs"], answer["bytes"], strict=True)
    ]
    return max(range(len(scores)), key=scores.__getitem__)


def _choice(name: str, _: str) -> Metric:
    by_byte = name.endswith("-norm")

    def measure(answer: Mapping[str, Any], references: Sequence[str]) -> Statistics:
        return (float(str(likeliest(answer, by_byte)) in references), 1.0)

    return Metric(name, f"choice|{'byte' if by_byte else 'sum'}", measure, task="score", binary=True)


JUDGE = "judge"


def _judge(name: str, _: str) -> Metric:
    """What it measures is the judge's value for the row (`inflight.evaluate.judge`), in place of an answer."""
    return Metric(name, name, lambda value, _: (value, 1.0), references=1)


METRICS: dict[str, Callable[[str, str], Metric]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    **dict.fromkeys(("rouge1", "rouge2", "rougeL"), _rouge),
    "exact": _exact,
    "f1": _f1,
    **dict.fromkeys(("wer", "cer"), _errors),
    "json-valid": _json_valid,
    "regex": _regex,
    "perplexity": _perplexity,
    **dict.fromkeys(CHOICE_METRICS, _choice),
    JUDGE: _judge,
}
"""The metrics by name; each function gets the name as given, and what follows a colon in it."""
