"""The whole command on a tiny engine: killed, continued, and its file served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from inflight.cli import cli
from inflight.tune.engine_alone import load_engine
from inflight.tune.settings import EngineBuild, Settings
from tests.fixtures.engines import TinyEngine
from tests.fixtures.waiting import wait_until

MAIN = "from inflight.cli import main; main()"
FAST = (
    *("--users", "2", "--input-tokens", "16", "--output-tokens", "8", "--trial-seconds", "0.5", "--seconds", "1"),
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


def test_a_killed_run_goes_on_where_it_was(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    arguments = [sys.executable, "-c", MAIN, "tune", str(tiny_engine("llama")), "--out", str(out), *FAST, "--json"]
    trials = out / "trials.jsonl"

    def kept() -> list[dict[str, object]]:
        return [json.loads(line) for line in trials.read_text().splitlines()] if trials.exists() else []

    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: len(kept()) >= 1, seconds=120)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    before = kept()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert kept()[: len(before)] == before
    names = [trial["trial"] for trial in kept()]
    assert len(set(names)) == len(names)
    result = json.loads(done.stdout)
    assert result["best"]["meets_slo"] is True
    assert result["best"]["lost"] == 0
    assert [len(trial["speeds"]) for trial in result["served"]].count(3) == 2
    assert len(result["best"]["speeds"]) == 3
    assert {trial["settings"]["stream_interval"] for trial in result["served"]} == {1, 4}
    assert (out / "report.html").stat().st_size > 100_000
    serve = cli.get_command(cli.make_context("inflight", ["serve"], resilient_parsing=True), "serve")
    assert serve is not None
    options = serve.make_context("serve", ["--config", str(out / "serve.yaml")]).params
    assert Path(options["model"]) == tiny_engine("llama").resolve()
    assert options["max_num_tokens"] == result["best"]["settings"]["max_num_tokens"]
    assert options["stream_interval"] == result["best"]["settings"]["stream_interval"]
