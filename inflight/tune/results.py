"""What was measured, and the file that keeps it, so that a killed run goes on where it was."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from inflight.common.atomic_files import write_atomic
from inflight.deploy.errors import DeployError
from inflight.tune.engine_alone import GreedyAnswers
from inflight.tune.settings import EngineBuild, Settings

MAX_FOREIGN_SHARE = 0.05
"""Fraction of the machine that other programs may use before figures are doubted."""
_PLAN, _TRIALS = "plan.json", "trials.jsonl"


_IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Times that are no work, or that others contain."""


@dataclass(frozen=True)
class ProcessorTimes:
    """Seconds of processor time of the machine, and of this process with those of its children that have ended."""

    at: float
    machine: float
    own: float

    @classmethod
    def now(cls) -> ProcessorTimes:
        machine = sum(value for name, value in psutil.cpu_times()._asdict().items() if name not in _IDLE)
        used = os.times()
        own = used.user + used.system + used.children_user + used.children_system
        return cls(time.monotonic(), machine, own)

    def foreign_share(self, since: ProcessorTimes, cores: int) -> float:
        """Return the fraction of the machine's cores that others used since then."""
        foreign = (self.machine - since.machine) - (self.own - since.own)
        return max(0.0, foreign) / max(1e-9, self.at - since.at) / cores


@dataclass(frozen=True)
class AloneTrial:
    """A measurement of the engine without a server. `meets_slo` is None if no bound of the SLO concerns steps."""

    settings: Settings
    seconds: float
    tokens_per_second: float
    p99_step: float
    meets_slo: bool | None = None


@dataclass(frozen=True)
class ServedTrial:
    """A measurement through the server; latencies in seconds. `meets_slo` is None without an SLO."""

    settings: Settings
    tokens_per_second: float
    requests_per_second: float
    p50: Mapping[str, float]
    p99: Mapping[str, float]
    completed: int
    lost: int
    meets_slo: bool | None
    slo: Mapping[str, str]
    """The verdict for each bound."""
    run: str
    """The directory of the last load test."""
    foreign_share: float = 0.0
    """The fraction of the machine that other programs used meanwhile."""
    speeds: tuple[float, ...] = ()
    """Output tokens per second of each run, if there were several; `tokens_per_second` is their mean."""

    @classmethod
    def combined(cls, runs: Sequence[ServedTrial]) -> ServedTrial:
        """Return runs of the same settings as one trial: it meets the SLO if all do, with the last one's latencies."""
        met = [run.meets_slo for run in runs]
        speeds = tuple(run.tokens_per_second for run in runs)
        return replace(
            runs[-1],
            tokens_per_second=math.fsum(speeds) / len(speeds),
            lost=max(run.lost for run in runs),
            meets_slo=None if None in met else all(met),
            foreign_share=max(run.foreign_share for run in runs),
            speeds=speeds,
        )


EQUAL_TOKENS, EQUAL_BEGINNING, GAP = "equal tokens", "equal tokens at the beginning", "log prob gap"


@dataclass(frozen=True)
class Quality:
    """What is known of an engine's answers: figures by name, of which the first one is charted; None: there is no such
    figure.

    They are metrics of a golden set, or else how the answers differ from those of the fp32 checkpoint: the fraction of
    greedy tokens that are equal at the same place of the answer, the mean number of tokens before the first other one,
    and the mean difference of the log probabilities of these beginnings' tokens, without its sign.
    """

    build: EngineBuild
    figures: Mapping[str, float | None]

    def shown(self, name: str) -> str:
        """Return a figure for people."""
        value = self.figures.get(name)
        return "" if value is None else f"{value:.1%}" if name == EQUAL_TOKENS else f"{value:.4f}"


def compare_answers(build: EngineBuild, ours: GreedyAnswers, reference: GreedyAnswers) -> Quality:
    """Compare greedy answers to the same prompts."""
    equal = total = beginnings = 0
    gaps: list[float] = []
    answers = zip(ours.tokens, ours.log_probs, reference.tokens, reference.log_probs, strict=True)
    for tokens, log_probs, theirs, their_log_probs in answers:
        same = [ours_at == theirs_at for ours_at, theirs_at in zip(tokens, theirs, strict=False)]
        beginning = same.index(False) if False in same else len(same)
        equal, total, beginnings = equal + sum(same), total + max(len(tokens), len(theirs)), beginnings + beginning
        pairs = zip(log_probs[:beginning], their_log_probs[:beginning], strict=True)
        gaps += [abs(ours_at - theirs_at) for ours_at, theirs_at in pairs]
    figures = {
        EQUAL_TOKENS: equal / total if total else 1.0,
        EQUAL_BEGINNING: beginnings / max(1, len(ours.tokens)),
        GAP: math.fsum(gaps) / len(gaps) if gaps else None,
    }
    return Quality(build, figures)


class TrialRecords:
    """The trials of a run, by what was measured; a kill after `add` does not lose it."""

    def __init__(self, directory: Path, plan: Mapping[str, Any]) -> None:
        """Begin in a new directory, or go on in that of an interrupted run.

        Raises DeployError `output_exists` for a directory of another plan or of something else.
        """
        self._path = directory / _TRIALS
        self.seconds = 0.0
        """Time that the trials took, also in interrupted runs."""
        self._since = time.monotonic()
        self._found: dict[str, dict[str, Any]] = {}
        _check_plan(directory, json.loads(json.dumps(plan)))
        if self._path.exists():
            self._read()

    def get(self, kind: str, *key: object) -> dict[str, Any] | None:
        return self._found.get(_name(kind, key))

    def add(self, kind: str, *key: object, value: Mapping[str, Any]) -> None:
        now = time.monotonic()
        took, self._since = now - self._since, now
        self.seconds += took
        record = {"trial": _name(kind, key), "took": took, **value}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._found[_name(kind, key)] = dict(value)

    def _read(self) -> None:
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for line in lines:
            try:
                record = json.loads(line)
                self.seconds += record.pop("took")
                self._found[record.pop("trial")] = record
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # cut off when the run was killed; it is measured again
        if lines and not lines[-1].endswith("\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")


def _name(kind: str, key: tuple[object, ...]) -> str:
    return " | ".join((kind, *map(str, key)))


def _check_plan(directory: Path, plan: Mapping[str, Any]) -> None:
    path = directory / _PLAN
    if directory.exists() and not directory.is_dir():
        raise DeployError(f"{directory} is a file; choose another --out.", "output_exists")
    if not path.exists():
        if directory.exists() and any(directory.iterdir()):
            raise DeployError(
                f"{directory} holds something else than a run of `inflight tune`; choose another --out.",
                "output_exists",
            )
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(plan, indent=2))
        return
    try:
        earlier = json.loads(path.read_bytes())
    except ValueError:
        earlier = None
    if earlier != plan:
        raise DeployError(
            f"{directory} is a run with other options, files, versions or another processor; repeat it as it began to"
            " go on with it, or choose another --out.",
            "output_exists",
        )


@dataclass(frozen=True)
class TuneResult:
    """All trials, and the best settings: of those that meet the SLO, or of all if none does, the fastest."""

    alone: list[AloneTrial]
    served: list[ServedTrial]
    quality: list[Quality]
    best: ServedTrial
    engine: str
    """The directory of the best settings' engine."""
    seconds: float
    """Time that all trials took, also in interrupted runs."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why candidates could not be measured."""

    @property
    def meets_slo(self) -> bool:
        return self.best.meets_slo is not False

    def notes(self) -> list[str]:
        """Return sentences about how sure the best settings are."""
        repeated = [trial for trial in self.served if trial.speeds]
        notes = [
            f"{trial.settings}: {min(trial.speeds):.1f} to {max(trial.speeds):.1f} output tokens/s in"
            f" {len(trial.speeds)} runs"
            for trial in repeated
        ]
        others = [trial for trial in repeated if trial.settings != self.best.settings]
        if any(max(other.speeds) >= min(self.best.speeds, default=math.inf) for other in others):
            notes.append("these ranges overlap, so which of them is faster is not shown; raise --seconds")
        if (share := max(trial.foreign_share for trial in self.served)) > MAX_FOREIGN_SHARE:
            notes.append(
                f"other programs used up to {share:.0%} of this machine meanwhile; stop them and tune into another"
                " --out"
            )
        return notes

    def quality_of(self, build: EngineBuild) -> Quality | None:
        return next((quality for quality in self.quality if quality.build == build), None)
