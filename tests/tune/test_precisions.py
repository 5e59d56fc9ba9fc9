"""The table of a checkpoint's precisions: a real command on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evaluate.golden_sets import golden
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.exports import forked_exports


@pytest.mark.slow
def test_each_precision_has_a_size_a_speed_and_metrics_of_both_tasks(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": n, "prompt": f"tea {n}", "answer": f"{n} cups"} for n in range(8)]
    options = "--id id --reference answer --metric exact,perplexity --raw --max-tokens 4 --users 2 --seconds 1"
    asked = ["--precision", "fp32,int8", "--golden", str(golden(tmp_path, rows)), *options.split(), "-q", "--json"]
    asked += ["--out", str(tmp_path / "out")]
    with forked_exports():
        done = CommandRunner(monkeypatch, capsys, "evaluate")("precisions", str(tiny_checkpoint("qwen2")), *asked)
    assert done.code == 0, done.err
    (values,) = done.objects
    assert values == json.loads((tmp_path / "out" / "precisions.json").read_bytes())
    full, small = values["engines"]
    assert (full["precision"], small["precision"]) == ("fp32", "int8")
    assert small["bytes"] < full["bytes"]
    assert full["tokens_per_second"] > 0
    for engine in values["engines"]:
        assert {*engine["metrics"]} == {"exact", "perplexity"}
        assert engine["metrics"]["perplexity"]["low"] <= engine["metrics"]["perplexity"]["high"]
    assert all(each["verdict"] is None for each in full["metrics"].values())
    assert all(each["verdict"] for each in small["metrics"].values())
    table = (tmp_path / "out" / "precisions.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in table] == ["precision", "---", "fp32", "int8"]
