"""The whole command on a tiny engine: killed, continued, and its file served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from build_engines.manifest import Manifest
from build_engines.progress import NoBuildProgress
from inflight.cli import cli
from inflight.tune.engine_alone import load_engine
from inflight.tune.plan import OPENVINO, TunePlan
from inflight.tune.settings import EngineBuild, Grid, Settings
from inflight.tune.tuner import Tuner
from loadtests.plan import LoadPlan
from tests.fixtures.engines import TinyEngine
from tests.fixtures.waiting import wait_until, whole_lines

MAIN = "from inflight.cli import main; main()"
FAST = (
    *("--users", "2", "--input-tokens", "16", "--output-tokens", "8", "--trial-seconds", "0.5", "--seconds", "3"),
    *("--max-num-tokens", "32", "--max-num-tokens", "64", "--finalists", "1", "--slo", "p99 ttft <= 60s"),
)


def test_an_engine_alone_answers_the_same_each_time(tiny_engine: TinyEngine) -> None:
    prompts = [[5, 6, 7, 8], [9, 8, 7]]
    settings = Settings(EngineBuild("fp32", "f32"), max_num_sequences=4)
    with load_engine(tiny_engine("llama"), settings, 1024) as engine:
        answers = engine.greedy(prompts, 6)
        sampling = {"temperature": 0.8, "top_p": 0.9}
        speed, steps = engine.speed([(prompt, 4) for prompt in prompts], users=3, seconds=0.5, sampling=sampling)
        assert engine.greedy(prompts, 6).tokens == answers.tokens
    assert [len(tokens) for tokens in answers.tokens] == [6, 6]
    assert all(value <= 0 for values in answers.log_probs for value in values)
    assert speed > 0
    assert all(step > 0 for step in steps)


@pytest.mark.parametrize("intervals", [(4,), pytest.param((1, 4), marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_where_it_was(tiny_engine: TinyEngine, tmp_path: Path, intervals: tuple[int, ...]) -> None:
    out = tmp_path / "tuned"
    tried = [part for interval in intervals for part in ("--stream-interval", str(interval))]
    arguments = [sys.executable, "-c", MAIN, "tune", str(tiny_engine("llama")), "--out", str(out), *FAST, *tried]
    trials = out / "trials.jsonl"

    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: len(whole_lines(trials)) >= 1, seconds=120)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    before = whole_lines(trials)
    done = subprocess.run([*arguments, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert whole_lines(trials)[: len(before)] == before
    names = [trial["trial"] for trial in whole_lines(trials)]
    assert len(set(names)) == len(names)
    result = json.loads(done.stdout)
    assert result["best"]["meets_slo"] is True
    assert result["best"]["lost"] == 0
    repeated = len(intervals) > 1
    assert [len(trial["speeds"]) for trial in result["served"]].count(3) == (2 if repeated else 0)
    assert len(result["best"]["speeds"]) == (3 if repeated else 0)
    assert {trial["settings"]["stream_interval"] for trial in result["served"]} == set(intervals)
    assert (out / "report.html").stat().st_size > 100_000
    serve = cli.get_command(cli.make_context("inflight", ["serve"], resilient_parsing=True), "serve")
    assert serve is not None
    options = serve.make_context("serve", ["--config", str(out / "serve.yaml")]).params
    assert [Path(each) for each in options["models"]] == [tiny_engine("llama").resolve()]
    assert options["max_num_tokens"] == result["best"]["settings"]["max_num_tokens"]
    assert options["stream_interval"] == result["best"]["settings"]["stream_interval"]


def test_the_best_two_are_compared_by_three_runs_each(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    """All has been measured, so that no server starts: what the records hold decides."""
    engine = tiny_engine("llama")
    manifest = Manifest.read(engine)
    build = EngineBuild(manifest.precision, manifest.kv_cache_precision)
    one, four = Settings(build, 32, 2), Settings(build, 32, 2, stream_interval=4)
    plan = TunePlan(
        str(engine), OPENVINO, True, Grid([build], [32, 64], [2], stream_intervals=[1, 4]), LoadPlan(), 2, 0.5, 1,
        quality_prompts=0,
    )  # fmt: skip
    tuner = Tuner(plan, tmp_path / "out", NoBuildProgress())
    for settings, speed in ((one, 20.0), (Settings(build, 64, 2), 10.0)):
        alone = {"tokens_per_second": speed, "p99_step": 0.1, "meets_slo": None}
        tuner._records.add("alone", settings, "0.5 s", value=alone)
    rest = {
        "requests_per_second": 1.0,
        "p50": {},
        "p99": {},
        "completed": 9,
        "lost": 0,
        "meets_slo": None,
        "slo": {},
        "run": "runs/x",
    }
    for settings, speeds in ((one, (9.0, 5.0, 4.0)), (four, (8.0, 7.0, 6.0))):
        for number, speed in enumerate(speeds, 1):
            key = (settings, number) if number > 1 else (settings,)
            tuner._records.add("served", *key, value={"tokens_per_second": speed, **rest})
    result = tuner.run()
    assert [(trial.settings, trial.speeds) for trial in result.served] == [
        (four, (8.0, 7.0, 6.0)),
        (one, (9.0, 5.0, 4.0)),
    ]
    assert (result.best.settings, result.best.tokens_per_second) == (four, 7.0)
