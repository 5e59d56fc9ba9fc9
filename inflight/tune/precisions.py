"""Engines of a checkpoint at several precisions: their size, speed, and what an evaluation says of their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_engines.build import BuildOptions, build_engine
from build_engines.manifest import Manifest, Precision
from build_engines.progress import BuildProgress
from inflight.deploy.repository.kv_budget import default_kv_cache_tokens
from inflight.evaluate.compare import compare
from inflight.evaluate.engines import engine_scoring
from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory
from inflight.evaluate.run import Scoring
from inflight.tune.engine_alone import load_engine
from inflight.tune.settings import EngineBuild, Settings

_PROMPT_TOKENS, _ANSWER_TOKENS = 128, 64
_SAMPLING = {"temperature": 0.0, "top_p": 0.0}


@dataclass(frozen=True)
class Value:
    """A metric of an engine with its 95% interval. `verdict` compares it with the first engine; None for that one."""

    value: float | None
    low: float | None
    high: float | None
    verdict: str | None


@dataclass(frozen=True)
class PrecisionRow:
    """An engine. `bytes`: of all its files; `tokens_per_second`: of the engine alone; `metrics` by name."""

    precision: str
    engine: str
    bytes: int
    tokens_per_second: float
    metrics: dict[str, Value]


@dataclass(frozen=True)
class Precisions:
    """The precisions to compare, in a folder. `seconds`: of each measurement of speed, with `users` requests in
    flight; `margin`: of the comparisons, in points."""

    checkpoint: str
    folder: Path
    names: Sequence[Precision]
    scorings: Sequence[Scoring]
    users: int
    seconds: float
    margin: float

    def measure(self, evaluate: Callable[[Scoring], Evaluation], progress: BuildProgress) -> list[PrecisionRow]:
        """Build, measure and evaluate the engines. Raises BuildError, DeployError and BatchError.

        What an interrupted run built and answered is kept.
        """
        rows: list[PrecisionRow] = []
        first: list[EvaluationDirectory] = []
        for name in self.names:
            engine = self.folder / "engines" / name
            options = BuildOptions(precision=name, name=Path(self.checkpoint).stem)
            manifest = build_engine(self.checkpoint, engine, options, progress=progress).manifest
            assert isinstance(manifest, Manifest)
            progress.step(f"Speed of {name}, {self.seconds:g} s")
            speed = engine_speed(engine, manifest, self.users, self.seconds)
            metrics: dict[str, Value] = {}
            directories: list[EvaluationDirectory] = []
            for number, template in enumerate(self.scorings):
                scoring = engine_scoring(template, engine, self.folder / "evaluations" / name)
                directories.append(scoring.directory)
                metrics |= self._values(evaluate(scoring), scoring.directory, first[number] if first else None)
            first = first or directories
            size = sum(file.bytes for file in manifest.files.values())
            rows.append(PrecisionRow(name, str(engine), size, speed, metrics))
        return rows

    def _values(
        self, found: Evaluation, directory: EvaluationDirectory, first: EvaluationDirectory | None
    ) -> dict[str, Value]:
        verdicts = {}
        if first is not None:
            compared = compare(first, directory, self.margin)
            verdicts = {each.metric.name: str(each.verdict) for each in compared.metrics}
        return {each.name: Value(each.value, each.low, each.high, verdicts.get(each.name)) for each in found.metrics}


def engine_speed(engine: Path, manifest: Manifest, users: int, seconds: float) -> float:
    """Return the output tokens per second of an engine alone, with `users` requests in flight. Raises DeployError.

    Its prompts are random tokens, the same ones for each engine of a checkpoint.
    """
    source = random.Random(0)
    answer = min(_ANSWER_TOKENS, manifest.max_seq_len // 2)
    prompt = min(_PROMPT_TOKENS, manifest.max_seq_len - answer)
    requests = [([source.randrange(manifest.vocab_size) for _ in range(prompt)], answer) for _ in range(4 * users)]
    settings = Settings(EngineBuild(manifest.precision), max_num_sequences=users)
    with load_engine(engine, settings, default_kv_cache_tokens(manifest, users)) as alone:
        return alone.speed(requests, users, seconds, _SAMPLING)[0]


def as_table(rows: Sequence[PrecisionRow]) -> str:
    """Return the engines as a Markdown table."""
    names = list(rows[0].metrics)
    lines = [("precision", "size", "tokens/s", *names), ("---", *("---:",) * (2 + len(names)))]
    for row in rows:
        cells = (_shown(row.metrics[name]) for name in names)
        lines.append((row.precision, f"{row.bytes / 1e6:,.0f} MB", f"{row.tokens_per_second:,.1f}", *cells))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: Value) -> str:
    if value.value is None:
        return "none"
    shown = f"{value.value:.4f} ({value.low:.4f} to {value.high:.4f})"
    return shown if value.verdict is None else f"{shown}, {value.verdict}"
