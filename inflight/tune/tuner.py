"""Compares settings: engines alone by successive halving, then the best few through the server."""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from inflight_client import InflightError

from build_engines.build import build_engine
from build_engines.checkpoints.locate import is_named
from build_engines.checkpoints.openvino_ir import is_openvino_model
from build_engines.cpu_precision import find_processor
from build_engines.errors import BuildError
from build_engines.gguf.header import is_gguf
from build_engines.manifest import Manifest
from build_engines.progress import BuildProgress
from build_engines.target import installed_versions
from inflight.common.atomic_files import write_atomic
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.repository.kv_budget import default_kv_cache_tokens
from inflight.deploy.server.server import Server
from inflight.runtime.engine.interface import EngineOptions
from inflight.tune.engine_alone import EngineAlone, GreedyAnswers, TokenizedRequest, load_engine
from inflight.tune.plan import OPENVINO, REFERENCE, TunePlan
from inflight.tune.results import (
    AloneTrial,
    ProcessorTimes,
    Quality,
    ServedTrial,
    TrialRecords,
    TuneResult,
    compare_answers,
)
from inflight.tune.settings import EngineBuild, Settings
from inflight.tune.workload import tokenized_requests
from loadtests.analysis.slo import Slo, parse_slos
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.report.write_reports import write_run_report
from loadtests.run.controller import run_load_test
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory

_REQUESTS_PER_USER = 16
_REPEATED, _REPEATS = 2, 2
"""The best settings, and how often each is measured again."""
_WITH_OTHER_INTERVALS = 2
"""The best finalists, which are measured at the other stream intervals too."""


class Tuner:
    """Runs a plan in a directory; what an interrupted run there measured is not measured again."""

    def __init__(
        self,
        plan: TunePlan,
        directory: Path,
        progress: BuildProgress,
        evaluate: Callable[[Path], Mapping[str, float | None]] | None = None,
    ) -> None:
        """`evaluate` returns an engine's metrics. Raises DeployError as `TrialRecords` does."""
        self._evaluate = evaluate
        self._plan, self._directory, self._progress = plan, directory, progress
        self._records = TrialRecords(directory, {**plan.as_json(), **_conditions(plan)})
        self._slo = parse_slos(plan.load.slo)
        self._requests: list[TokenizedRequest] = []
        self._failed: dict[str, str] = {}
        self._alone_speeds: dict[Settings, float] = {}

    def run(self) -> TuneResult:
        """Return everything that was measured.

        Raises BuildError, DeployError, LoadError and InflightError; KeyboardInterrupt for Ctrl-C.
        """
        alone: list[AloneTrial] = []
        finalists = self._plan.grid.engines()
        if self._plan.target == OPENVINO:
            alone = self._halve(finalists)
            finalists = self._finalists(alone)
        served = self._serve_all(finalists)
        repeated = self._repeat(served[:_REPEATED])
        served = sorted([*repeated, *served[_REPEATED:]], key=_rank, reverse=True)
        quality = self._compare(list({trial.settings.build: trial.settings for trial in served}.values()))
        best = max(repeated, key=_rank)
        best = served[0] if _rank(served[0])[:2] > _rank(best)[:2] else best
        engine = self._engine(best.settings)
        return TuneResult(alone, served, quality, best, str(engine), self._records.seconds, self._failed)

    # The engine alone

    def _halve(self, candidates: list[Settings]) -> list[AloneTrial]:
        """Measure all candidates, the better half twice as long, and so on; return each candidate's last trial."""
        last: dict[Settings, AloneTrial] = {}
        seconds, left = self._plan.trial_seconds, list(candidates)
        while True:
            order = random.Random(len(left)).sample(left, len(left))  # so that a drift of the machine favours none
            for number, settings in enumerate(order, 1):
                with self._skip_failed(settings):
                    last[settings] = self._alone(settings, seconds, f"{number} of {len(order)}")
            left = [settings for settings in left if str(settings) not in self._failed]
            half = math.ceil(len(left) / 2)
            if self._plan.exhaustive or half <= self._plan.finalists:
                return sorted(last.values(), key=_rank, reverse=True)
            left.sort(key=lambda settings: _rank(last[settings]), reverse=True)
            left, seconds = left[:half], seconds * 2

    @contextmanager
    def _skip_failed(self, settings: Settings) -> Iterator[None]:
        """Go on without a candidate that fails; the next run with the same options tries it again.

        Raises its error if all others have failed too.
        """
        try:
            yield
        except (BuildError, DeployError, LoadError, InflightError) as error:
            self._failed[str(settings)] = str(error)
            self._progress.step(f"{settings} is left out: {error}")
            if all(str(candidate) in self._failed for candidate in self._plan.grid.engines()):
                raise

    def _finalists(self, alone: Sequence[AloneTrial]) -> list[Settings]:
        """Return the candidates to serve: the best, and the best one of each other weight precision."""
        ranked = [trial.settings for trial in alone]
        if self._plan.exhaustive:
            return ranked
        longest = max(trial.seconds for trial in alone)
        ahead = [trial.settings for trial in alone if trial.seconds == longest][: self._plan.finalists]
        precisions = {settings.build.precision for settings in ahead}
        for settings in ranked:
            if settings.build.precision not in precisions:
                precisions.add(settings.build.precision)
                ahead.append(settings)
        return ahead

    def _alone(self, settings: Settings, seconds: float, place: str) -> AloneTrial:
        key = ("alone", replace(settings, stream_interval=1), f"{seconds:g} s")
        if (record := self._records.get(*key)) is None:
            with self._loaded(settings) as engine:
                self._progress.step(f"Engine alone, {place}: {settings}, {seconds:g} s")
                sampling = {name: getattr(self._plan.load, name) for name in ("temperature", "top_p")}
                speed, steps = engine.speed(self._tokenized(settings), self._plan.users, seconds, sampling)
            record = {
                "tokens_per_second": speed,
                "p99_step": float(np.percentile(steps, 99)),
                "meets_slo": _steps_meet(self._slo, steps),
            }
            self._records.add(*key, value=record)
        trial = AloneTrial(settings, seconds, **record)
        self._alone_speeds[settings] = trial.tokens_per_second
        return trial

    @contextmanager
    def _loaded(self, settings: Settings) -> Iterator[EngineAlone]:
        engine = self._engine_of_weights(settings.build)
        sequences = settings.max_num_sequences or EngineOptions.max_num_sequences
        manifest = Manifest.read(engine)
        if kv_precision := settings.build.kv_precision:
            manifest = manifest.model_copy(update={"kv_cache_precision": kv_precision})
        with load_engine(engine, settings, default_kv_cache_tokens(manifest, sequences)) as alone:
            yield alone

    def _tokenized(self, settings: Settings) -> list[TokenizedRequest]:
        if not self._requests:
            engine = self._engine_of_weights(settings.build)
            longest = Manifest.read(engine).max_seq_len
            sessions = self._plan.users * _REQUESTS_PER_USER
            self._requests = tokenized_requests(self._plan.load, engine, longest, sessions)
        return self._requests

    # Through the server

    def _serve_all(self, finalists: Sequence[Settings]) -> list[ServedTrial]:
        """Measure the finalists at the first stream interval, and the best of them at the others."""
        others = self._plan.grid.stream_intervals[1:]
        total = len(finalists) + len(others) * (
            len(finalists) if self._plan.exhaustive else min(_WITH_OTHER_INTERVALS, len(finalists))
        )
        numbers = itertools.count(1)
        served: list[ServedTrial] = []
        for settings in finalists:
            with self._skip_failed(settings):
                served.append(self._served(settings, f"{next(numbers)} of {total}"))
        if not served:
            raise DeployError(
                f"No setting could be measured through the server: {'; '.join(self._failed.values())}",
                "server_start_failed",
            )
        ranked = sorted(served, key=_rank, reverse=True)
        again = ranked if self._plan.exhaustive else ranked[:_WITH_OTHER_INTERVALS]
        for trial, interval in itertools.product(again, others):
            settings = replace(trial.settings, stream_interval=interval)
            with self._skip_failed(settings):
                served.append(self._served(settings, f"{next(numbers)} of {total}"))
        return sorted(served, key=_rank, reverse=True)

    def _repeat(self, best: Sequence[ServedTrial]) -> list[ServedTrial]:
        """Measure the best again, taking turns, so that chance and a drift of the machine favour none."""
        runs = [[trial] for trial in best]
        total = _REPEATS * len(best)
        for number, again in itertools.product(range(_REPEATS if len(best) > 1 else 0), runs):
            settings = again[0].settings
            place = f"again, {number * len(best) + runs.index(again) + 1} of {total}"
            with self._skip_failed(settings):
                again.append(self._served(settings, place, number + 2))
        return [ServedTrial.combined(trials) if len(trials) > 1 else trials[0] for trials in runs]

    def _served(self, settings: Settings, place: str, number: int = 1) -> ServedTrial:
        """Return the measurement of settings with this number, counted from 1."""
        key = (settings, number) if number > 1 else (settings,)
        if (record := self._records.get("served", *key)) is None:
            engine = self._engine(settings)
            load = self._load_plan(settings)
            self._progress.step(f"Through the server, {place}: {settings}, {load.warmup:.0f} and {load.seconds:.0f} s")
            before = ProcessorTimes.now()
            record = self._load(settings, engine, load)
            record["foreign_share"] = ProcessorTimes.now().foreign_share(before, os.cpu_count() or 1)
            self._records.add("served", *key, value=record)
        return ServedTrial(settings, **record)

    def _load_plan(self, settings: Settings) -> LoadPlan:
        """Return the load test of a candidate: it lasts for two answers of each user, after one as a warm-up.

        All users begin at once, so a part of that depends on where it begins.
        """
        plan = self._plan.load
        speed = self._alone_speeds.get(replace(settings, stream_interval=self._plan.grid.stream_intervals[0]))
        if not speed:
            return plan
        answer = sum(tokens for _, tokens in self._tokenized(settings)) / len(self._tokenized(settings))
        wave = self._plan.users * answer / speed
        return plan.model_copy(update={"warmup": max(plan.warmup, wave), "seconds": max(plan.seconds, 2 * wave)})

    def _load(self, settings: Settings, engine: Path, load: LoadPlan) -> dict[str, Any]:
        directory = self._directory / "runs" / str(settings).replace(", ", "-").replace(" ", "-")
        shutil.rmtree(directory, ignore_errors=True)
        with Server(engine, deployment_options(self._plan.target, settings), on_message=self._progress.step) as server:
            plan = load.model_copy(update={"server": server.grpc_address, "model": None})
            run = RunDirectory.create(directory)
            if run_load_test(plan, run, WorkerSpec(), lambda interval: None):
                raise KeyboardInterrupt
        summary, _ = write_run_report(run, self._directory / "runs")
        return {
            "tokens_per_second": summary.throughput.value,
            "requests_per_second": summary.completed_per_second,
            "p50": {name: latency.p50 for name, latency in summary.latencies.items()},
            "p99": {name: latency.p99 for name, latency in summary.latencies.items()},
            "completed": summary.requests.completed,
            "lost": summary.requests.lost,
            "meets_slo": all(bound.met for bound in summary.slo) if summary.slo else None,
            "slo": {bound.text: bound.verdict for bound in summary.slo},
            "run": str(directory.relative_to(self._directory)),
        }

    # Quality

    def _compare(self, builds: Sequence[Settings]) -> list[Quality]:
        """Evaluate each build, or compare its answers with those of the checkpoint in fp32; nothing if that isn't
        here."""
        if self._evaluate is not None:
            return [Quality(settings.build, self._metrics(settings, self._evaluate)) for settings in builds]
        if self._plan.target != OPENVINO or not self._plan.quality_prompts:
            return []
        if self._checkpoint() is None:
            self._progress.step("Answers are not compared: the engine's checkpoint is not here, or has no fp32")
            return []
        reference = self._greedy(REFERENCE)
        return [compare_answers(each.build, self._greedy(each.build), reference) for each in builds]

    def _metrics(
        self, settings: Settings, evaluate: Callable[[Path], Mapping[str, float | None]]
    ) -> Mapping[str, float | None]:
        if (record := self._records.get("evaluated", settings.build)) is None:
            self._progress.step(f"Evaluation of {settings.build}")
            record = dict(evaluate(self._engine(settings)))
            self._records.add("evaluated", settings.build, value=record)
        return record

    def _greedy(self, build: EngineBuild) -> GreedyAnswers:
        if (record := self._records.get("greedy", build)) is None:
            settings = Settings(build, max_num_sequences=self._plan.quality_prompts)
            with self._loaded(settings) as engine:
                self._progress.step(f"Answers of {build}")
                prompts = [ids for ids, _ in self._tokenized(settings)][: self._plan.quality_prompts]
                record = asdict(engine.greedy(prompts, self._plan.quality_tokens))
            self._records.add("greedy", build, value=record)
        return GreedyAnswers(**record)

    # Engines

    def _checkpoint(self) -> str | None:
        """Return the checkpoint, or None if only an engine was given, and its checkpoint is not here any more or has no
        weights but those for OpenVINO."""
        if not self._plan.is_engine:
            return self._plan.source
        named = Manifest.read(Path(self._plan.source)).source.checkpoint
        place = Path(named).expanduser()
        if is_named(named) or is_gguf(place):
            return named
        return named if (place / "config.json").is_file() and not is_openvino_model(place) else None

    def _engine_of_weights(self, build: EngineBuild) -> Path:
        """Return an engine with these weights; the KV cache's precision is chosen when it is loaded."""
        same = [other for other in self._plan.grid.builds if other.precision == build.precision]
        return self._engine(Settings(same[0] if same else build))

    def _engine(self, settings: Settings) -> Path:
        """Return the directory of a candidate's engine, which is built if it is not there."""
        if self._plan.is_engine and settings.build in self._plan.grid.builds:
            return Path(self._plan.source)
        out = self._directory / "engines" / self._plan.engine_name(settings)
        if not (out / "engine.json").is_file():
            checkpoint = self._checkpoint()
            assert checkpoint is not None
            build_engine(checkpoint, out, self._plan.build_options(settings), progress=self._progress)
        return out


def _conditions(plan: TunePlan) -> dict[str, Any]:
    """Return what measurements depend on besides the options: files, versions and the processor."""
    files = [Path(name).expanduser() for name in (plan.source, plan.load.workload.prompts) if name]
    packages = installed_versions("inflight", "openvino")
    return {"files": [_fingerprint(file) for file in files], "packages": packages, "processor": str(find_processor())}


def _fingerprint(path: Path) -> list[list[Any]]:
    """Return the sizes and times of a file or of the files in a directory; nothing for a name of the hub."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [[file.name, (status := file.stat()).st_size, status.st_mtime_ns] for file in files if file.is_file()]


def deployment_options(target: str, settings: Settings) -> DeploymentOptions:
    """Return the options that serve a candidate; TensorRT-LLM compiles the limits into its engines."""
    if target == "tensorrt-llm":
        return DeploymentOptions()
    return DeploymentOptions(
        max_num_tokens=settings.max_num_tokens or None,
        max_num_sequences=settings.max_num_sequences or None,
        threads=settings.threads or None,
        stream_interval=settings.stream_interval if target == OPENVINO else None,
    )


def _rank(trial: AloneTrial | ServedTrial) -> tuple[bool, bool, float]:
    """Settings that meet the SLO come before others, then those that lose no request, then faster ones."""
    lost = trial.lost if isinstance(trial, ServedTrial) else 0
    return trial.meets_slo is not False, not lost, trial.tokens_per_second


def _steps_meet(slo: Sequence[Slo], steps: Sequence[float]) -> bool | None:
    """Return whether steps are short enough for the bounds on the time between tokens; None without such a bound.

    Through the server a token takes at least a step.
    """
    bounds = [bound for bound in slo if bound.quantity in ("itl", "tpot")]
    if not bounds:
        return None
    values = {
        bound: float(np.percentile(steps, bound.level)) if bound.statistic == "percentile" else float(np.mean(steps))
        for bound in bounds
        if not (bound.quantity == "tpot" and bound.statistic == "percentile")
    }
    return all(value <= bound.limit for bound, value in values.items())


def write_serve_file(result: TuneResult, path: Path, target: str) -> None:
    """Write the options with which `inflight serve --config` serves the best settings."""
    settings = result.best.settings
    options = deployment_options(target, settings)
    engine = Path(result.engine).resolve()
    folder = path.resolve().parent
    values: dict[str, Any] = {"engine": str(engine.relative_to(folder) if engine.is_relative_to(folder) else engine)}
    for name in ("max_num_tokens", "max_num_sequences", "threads", "stream_interval"):
        if (value := getattr(options, name)) is not None:
            values[name.replace("_", "-")] = value
    measured = f"# Written by inflight tune: {result.best.tokens_per_second:.1f} output tokens/s with {settings}.\n"
    write_atomic(path, measured + yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
