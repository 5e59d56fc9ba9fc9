"""The gate asks an engine what the baseline was asked, and keeps the verdict with the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight.batch.errors import BatchError
from inflight.evaluate.gate import Gate
from tests.evaluate.golden_sets import Answers, evaluate, golden, scoring
from tests.fixtures.errors import raises

ROWS: list[dict[str, Any]] = [{"id": f"r{n}", "prompt": f"tea {n}", "answer": f"tea {n}"} for n in range(40)]
WRONG = {row["prompt"]: "coffee" for row in ROWS[:12]}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    source = golden(tmp_path, ROWS)
    wanted = scoring(source, tmp_path / "baseline", ("exact", "f1"), template="{{ prompt }}")
    running = wanted.job.run_options.model_copy(update={"model": "tea"})
    baseline = evaluate(replace(wanted, job=wanted.job.model_copy(update={"run_options": running})), {})
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "engine.json").write_text("{}")
    (engine / "verdict.json").write_text("of an earlier baseline")
    return Gate(baseline, str(source), engine, tmp_path / "evaluations")


@pytest.mark.parametrize(("answers", "code", "verdict"), [({}, 0, "equivalent"), (WRONG, 1, "worse")])
def test_the_verdict_is_beside_the_engine_and_decides_the_exit_code(
    gate: Gate, answers: Answers, code: int, verdict: str
) -> None:
    wanted = gate.scoring()
    assert wanted.job.input.template == "{{ prompt }}"
    running = wanted.job.run_options
    assert (running.ephemeral, running.model, wanted.reference) == (str(gate.engine), None, "answer")
    assert not (gate.engine / "verdict.json").exists()
    found = gate.judge(evaluate(wanted, answers), 15)
    assert found.exit_code == code
    kept = json.loads((gate.engine / "verdict.json").read_bytes())
    assert (kept["verdict"], kept["metrics"]["exact"]["harmful"]) == (verdict, len(answers))
    assert verdict in (gate.engine / "verdict.md").read_text().lower()


def test_answers_of_an_earlier_build_are_not_judged(gate: Gate) -> None:
    first = gate.scoring().directory.path
    assert gate.scoring().directory.path == first
    (gate.engine / "engine.json").write_text('{"created": "later"}')
    assert gate.scoring().directory.path != first


@pytest.mark.parametrize("rows", [ROWS[:-1], [*ROWS[1:], ROWS[0]]])
def test_another_golden_set_is_refused_before_the_engine_is_served(gate: Gate, rows: list[dict[str, Any]]) -> None:
    golden(Path(gate.golden).parent, rows)
    with raises(BatchError, "evaluations_differ", naming="golden"):
        gate.scoring()
    assert not gate.folder.exists()
