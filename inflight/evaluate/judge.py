"""A judge: a model that compares two answers to the same request, in both orders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from inflight_client import InflightError

from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import GenerationDefaults, InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.reporting.manifest import JobManifest
from inflight.batch.row_formats.template import Template
from inflight.batch.state.line_file import read_lines
from inflight.common.atomic_files import make_directory, write_atomic
from inflight.evaluate.evaluation import JudgeSummary

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
        return None if self.code else sum(self.points.values()) / 2

    @property
    def agrees(self) -> bool:
        return not self.code and len(set(self.points.values())) == 1


@dataclass(frozen=True)
class Judge:
    """A judge: its rubric, which is a template over `request`, `a`, `b` and the row's columns, and how it runs."""

    running: RunOptions
    rubric: str = RUBRIC
    max_tokens: int = 64

    def template(self) -> Template:
        """Return the rubric. Raises BatchError `input_invalid` if it does not show both answers."""
        rubric = Template(self.rubric, "the rubric")
        if missing := {"a", "b"} - rubric.columns:
            raise BatchError(
                f"the rubric does not show the judge {{{{ {min(missing)} }}}}; write {{{{ a }}}} and {{{{ b }}}} where"
                " the two answers belong",
                "input_invalid",
            )
        return rubric

    def job(self, pairs: Iterable[Pair], folder: Path) -> Job | None:
        """Write two rows for each pair, and return the job in which the judge reads them: greedily, with a verdict that
        matches a schema. A pair that the rubric can't show is left out; None: all are. Raises BatchError.

        Other pairs, rubrics and judges have other directories in `folder`, so that no verdict is another's.
        """
        rows = b"".join(_rows(pairs, self.template()))
        if not rows:
            return None
        asked = orjson.dumps([self.running.servers, self.running.ephemeral, self.max_tokens])
        place = folder / f"judge-{hashlib.sha256(asked + rows).hexdigest()[:16]}"
        with map_disk_errors(folder):
            make_directory(place)
            write_atomic(place / "rows.jsonl", rows)
        return Job(
            input=InputSpec(address=str(place / "rows.jsonl"), id="id", row_format="plain"),
            output=OutputSpec(address=str(place / "verdicts.jsonl")),
            defaults=GenerationDefaults(
                max_tokens=self.max_tokens, temperature=0.0, generation_config="model", answer_schema=_SCHEMA
            ),
            run_options=self.running,
        )

    def judgements(self, job: Job) -> dict[int, Judgement]:
        """Return the judgements of the finished job by the pairs' numbers."""
        points: dict[int, dict[str, float]] = {}
        codes: dict[int, str] = {}
        for status, path in JobDirectory.from_output(job.output).result_files().items():
            for line in read_lines(path):
                record = orjson.loads(line)
                number, _, order = record["id"].partition(":")
                if status is RowStatus.OK:
                    points.setdefault(int(number), {})[order] = _POINTS[order][record["verdict"]]
                else:
                    codes[int(number)] = record["code"]
        return {number: Judgement(points.get(number, {}), codes.get(number, "")) for number in {*points, *codes}}

    def summary(self, job: Job, judged: Iterable[Judgement]) -> JudgeSummary:
        """Return how far the judge can be believed."""
        manifest = JobManifest.model_validate_json(JobDirectory.from_output(job.output).manifest.read_bytes())
        whole = [each for each in judged if not each.code]
        first = sum(each.points["ab"] + 1 - each.points["ba"] for each in whole) / 2
        return JudgeSummary(
            job=manifest.job | {"run_options": self.running.model_dump(mode="json")},
            rubric=self.rubric,
            model=manifest.fingerprints.model,
            pairs=len(whole),
            agreement=sum(each.agrees for each in whole) / len(whole) if whole else None,
            prefers_first=first / len(whole) if whole else None,
        )


def _rows(pairs: Iterable[Pair], rubric: Template) -> Iterator[bytes]:
    for pair in pairs:
        shown = {"ab": (pair.answer, pair.other), "ba": (pair.other, pair.answer)}
        try:
            texts = {
                order: rubric.render({**pair.values, "request": pair.request, "a": a, "b": b})
                for order, (a, b) in shown.items()
            }
        except InflightError:
            continue
        for order, text in texts.items():
            yield orjson.dumps({"id": f"{pair.number}:{order}", "prompt": text}) + b"\n"
