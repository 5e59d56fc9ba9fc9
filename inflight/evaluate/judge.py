"""A judge: a model that compares two answers to the same request, in both orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import GenerationDefaults, InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.row_formats.template import Template
from inflight.common.atomic_files import write_atomic

RUBRIC = """\
You compare two answers to the same request. Judge whether each is correct, complete and does what the request asks. \
Do not prefer an answer because it is longer, or because it is the first.

Request:
{{ request }}

Answer A:
{{ a }}

Answer B:
{{ b }}

Which answer is better? Reply with JSON: {"verdict": "A"}, {"verdict": "B"}, or {"verdict": "tie"}."""
_ORDERS = ("ab", "ba")
_POINTS = {"ab": {"A": 1.0, "B": 0.0, "tie": 0.5}, "ba": {"A": 0.0, "B": 1.0, "tie": 0.5}}
"""What a verdict gives the answer, which is A in the first order and B in the second."""
_SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Pair:
    """An answer and the text that it is compared with; `values` are the columns of their row, by name."""

    number: int
    request: str
    answer: str
    other: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """The verdicts on a pair in both orders. `code`: why there are not two."""

    points: Mapping[str, float]
    code: str = ""

    @property
    def value(self) -> float | None:
        """1: the answer is better in both orders; 0: the other text is; 0.5: ties, or the orders disagree."""
        return None if self.code else sum(self.points.values()) / len(_ORDERS)

    @property
    def agrees(self) -> bool:
        return not self.code and len(set(self.points.values())) == 1


def judge_rubric(text: str) -> Template:
    """Return the rubric, a template over `request`, `a`, `b` and the row's columns. Raises BatchError
    `input_invalid`."""
    rubric = Template(text, "the rubric")
    if missing := {"a", "b"} - rubric.columns:
        raise BatchError(
            f"the rubric does not show the judge {{{{ {min(missing)} }}}}; write {{{{ a }}}} and {{{{ b }}}} where the"
            " two answers belong",
            "input_invalid",
        )
    return rubric


def write_pairs(pairs: Iterable[Pair], rubric: Template, path: Path) -> int:
    """Write the judge's rows, two for each pair, and return their number. A pair that the rubric can't show is left
    out."""
    lines = []
    for pair in pairs:
        values = {**pair.values, "request": pair.request}
        try:
            texts = [
                rubric.render({**values, "a": a, "b": b})
                for a, b in ((pair.answer, pair.other), (pair.other, pair.answer))
            ]
        except InflightError:
            continue
        lines += [
            orjson.dumps({"id": f"{pair.number}:{order}", "prompt": text}) + b"\n"
            for order, text in zip(_ORDERS, texts, strict=True)
        ]
    write_atomic(path, b"".join(lines))
    return len(lines)


def judge_job(rows: Path, out: Path, running: RunOptions, max_tokens: int) -> Job:
    """Return the job in which the judge reads the rows of `write_pairs`: greedily, with a verdict that matches a
    schema."""
    defaults = GenerationDefaults(
        max_tokens=max_tokens, temperature=0.0, generation_config="model", answer_schema=_SCHEMA
    )
    return Job(
        input=InputSpec(address=str(rows), id="id", row_format="plain"),
        output=OutputSpec(address=str(out)),
        defaults=defaults,
        run_options=running,
    )


def judgements(directory: JobDirectory) -> dict[int, Judgement]:
    """Return the judgements of a finished job by the pairs' numbers."""
    points: dict[int, dict[str, float]] = {}
    codes: dict[int, str] = {}
    for status in RowStatus:
        path = directory.result_file(status)
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            record = orjson.loads(line)
            number, _, order = record["id"].partition(":")
            if status is RowStatus.OK:
                points.setdefault(int(number), {})[order] = _POINTS[order][record["verdict"]]
            else:
                codes[int(number)] = record["code"]
    return {number: Judgement(points.get(number, {}), codes.get(number, "")) for number in {*points, *codes}}


def judge_summary(judged: Mapping[int, Judgement]) -> dict[str, float | int | None]:
    """Return how far the judge can be believed.

    `agreement`: the share of pairs with the same verdict in both orders. `prefers_first`: the mean of its verdicts for
    the answer shown first, from 0 to 1; 0.5 without a preference for a place.
    """
    whole = [each for each in judged.values() if not each.code]
    if not whole:
        return {"pairs": 0, "agreement": None, "prefers_first": None}
    first = sum(each.points["ab"] + 1 - each.points["ba"] for each in whole)
    return {
        "pairs": len(whole),
        "agreement": sum(each.agrees for each in whole) / len(whole),
        "prefers_first": first / 2 / len(whole),
    }
