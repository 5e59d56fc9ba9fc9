"""An evaluation is a job and its scores: bound to its golden set, the same after any number of runs."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.runner import JobRunner
from inflight.commands.batch import execute
from tests.batch.scripted_backend import ScriptedBackend
from tests.evaluate.golden_sets import evaluate, golden, scoring
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.errors import raises

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "tea", "answer": "tea"},
    {"id": "b", "prompt": "milk", "answer": ["cream", "milk "]},
    {"id": "c", "prompt": "42", "answer": 42},
    {"id": "d", "prompt": "salt", "answer": "pepper"},
]
TOO_LONG = InflightError("too long", "prompt_too_long")


def test_scores_are_in_order_with_texts_references_and_the_codes_of_failed_rows(tmp_path: Path) -> None:
    wanted = scoring(golden(tmp_path, ROWS), tmp_path / "run", ["exact", "bleu"])
    directory = evaluate(wanted, {"salt": TOO_LONG})
    found = directory.read()
    scores = list(directory.read_scores(found))
    assert [(each.id, (each.scores or {}).get("exact"), each.code) for each in scores] == [
        ("a", 1.0, ""),
        ("b", 1.0, ""),
        ("c", 1.0, ""),
        ("d", None, "prompt_too_long"),
    ]
    assert (scores[1].answer, scores[1].references) == ("milk", ["cream", "milk "])
    assert (found.golden.rows, found.scored, found.codes) == (4, 3, {"prompt_too_long": 1})
    exact = found.metrics[0]
    assert (exact.name, exact.rows, exact.value) == ("exact", 3, 1.0)
    assert "version:2.6.0" in found.metrics[1].signature
    assert found.model == "one"


def test_metrics_can_be_added_to_a_finished_run_and_give_the_same_file_each_time(tmp_path: Path) -> None:
    source = golden(tmp_path, ROWS)
    directory = evaluate(scoring(source, tmp_path / "run"), {})
    first = directory.scores.read_bytes()
    more = evaluate(scoring(source, tmp_path / "run", ["exact", "f1"]), {"tea": "another answer"})
    assert [metric.name for metric in more.read().metrics] == ["exact", "f1"]
    evaluate(scoring(source, tmp_path / "run"), {})
    assert directory.scores.read_bytes() == first


def test_rows_that_failed_can_be_sent_again(tmp_path: Path) -> None:
    wanted = scoring(golden(tmp_path, ROWS), tmp_path / "run")
    assert evaluate(wanted, {"milk": TOO_LONG, "42": TOO_LONG}).read().scored == 2
    found = evaluate(wanted, {"42": "43"}, retry=["prompt_too_long"])
    scores = {row.id: row.scores for row in found.read_scores(found.read())}
    assert scores == {"a": {"exact": 1.0}, "b": {"exact": 1.0}, "c": {"exact": 0.0}, "d": {"exact": 0.0}}


def test_a_golden_set_that_is_edited_while_the_job_runs_is_refused(tmp_path: Path) -> None:
    wanted = scoring(golden(tmp_path, ROWS), tmp_path / "run")
    evaluate(wanted, {})
    golden(tmp_path, [ROWS[0] | {"answer": "coffee"}, *ROWS[1:]])
    with raises(BatchError, "input_changed"):
        wanted.score()


@pytest.mark.parametrize(
    "row", [{"id": "a", "prompt": "tea", "answer": "coffee"}, {"id": "a", "prompt": "tea!", "answer": "tea"}]
)
def test_a_directory_is_bound_to_its_golden_set(tmp_path: Path, row: dict[str, Any]) -> None:
    source = golden(tmp_path, ROWS)
    evaluate(scoring(source, tmp_path / "run"), {})
    golden(tmp_path, [row, *ROWS[1:]])
    with raises(BatchError, "input_changed"):
        scoring(source, tmp_path / "run").begin()


@pytest.mark.parametrize(
    ("rows", "metric", "reference", "naming"),
    [
        ([*ROWS, {"id": "e", "prompt": "rice"}], "exact", "answer", ("line 5", "answer")),
        ([*ROWS, {"id": "e", "answer": "rice"}], "exact", "answer", "line 5"),
        (ROWS, "wer", "answer", "line 2"),
        ([*ROWS, ROWS[1]], "exact", "answer", ("line 5", "b")),
        ([*ROWS, {"id": "e", "prompt": "rice", "answer": ["a", "("]}], "regex", "answer", ("line 5", "missing")),
        ([{"id": "a", "prompt": "tea", "answer": '["x", "y"]'}], "perplexity", "answer", "line 1"),
        ([{"id": "a", "prompt": "tea", "continuations": "x"}], "perplexity", None, "line 1"),
        (ROWS, "exact", None, "exact"),
    ],
)
def test_golden_sets_that_do_not_fit_the_metrics_are_refused_before_any_row_is_sent(
    tmp_path: Path, rows: list[dict[str, Any]], metric: str, reference: str | None, naming: str | tuple[str, ...]
) -> None:
    with raises(BatchError, "input_invalid", naming=naming):
        scoring(golden(tmp_path, rows), tmp_path / "run", [metric], reference).begin()
    assert not (tmp_path / "run").exists()


def test_rows_of_openais_format_have_their_reference_beside_the_body(tmp_path: Path) -> None:
    def row(number: int) -> dict[str, Any]:
        body = {"model": "m", "messages": [{"role": "user", "content": "tea"}], "max_tokens": 4}
        return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body, "wanted": "x"}

    wanted = scoring(golden(tmp_path, [row(1), row(2)]), tmp_path / "run", ["regex:tea"], "wanted", id=None)
    found = evaluate(wanted, {}).read()
    assert (found.scored, found.metrics[0].value) == (2, 1.0)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandRunner:
    monkeypatch.chdir(tmp_path)
    backends = [ScriptedBackend()]
    monkeypatch.setattr(execute, "_runner_class", lambda job: functools.partial(JobRunner, backends=backends))
    return CommandRunner(monkeypatch, capsys, "evaluate")


def test_the_commands_run_and_compare(tmp_path: Path, command: CommandRunner) -> None:
    golden(tmp_path, [{"id": number, "prompt": "tea", "answer": "tea"} for number in range(150)])
    for name, template in (("one", "{{ prompt }}"), ("two", "{{ prompt }}"), ("three", "{{ prompt }}! <b>")):
        asked = ("golden.jsonl", "--id", "id", "--reference", "answer", "--metric", "exact", "--template", template)
        ran = command("run", *asked, "--out", name, "--quiet", "--json")
        assert (ran.code, ran.objects[0]["evaluation"]["scored"]) == (0, 150)
    same = command("compare", "one", "two", "--json")
    assert (same.code, same.objects[0]["verdict"]) == (0, "equivalent")
    worse = command("compare", "one", "three", "--junit", "v.xml", "--markdown", "v.md", "--json")
    assert (worse.code, worse.objects[0]["verdict"], worse.objects[0]["changed_answers"]) == (1, "worse", 150)
    assert any("template" in note for note in worse.objects[0]["notes"])
    assert 'failures="1"' in (tmp_path / "v.xml").read_text()
    assert "| exact | worse |" in (tmp_path / "v.md").read_text()
    page = (tmp_path / "three" / "report.html").read_text()
    assert "Worst rows by exact" in page
    assert "tea! &lt;b&gt;" in page
    assert command("compare", "one", "nowhere").code == 2
    assert command("run", "golden.jsonl", "--metric", "blue", "--out", "four").code == 2
    assert not (tmp_path / "four").exists()


def test_a_kept_column_of_that_name_is_not_taken_for_tokens(tmp_path: Path) -> None:
    rows = [row | {"tokens": 3} for row in ROWS]
    directory = evaluate(scoring(golden(tmp_path, rows), tmp_path / "run", keep=("tokens",)), {})
    assert {row.tokens for row in directory.read_scores(directory.read())} == {None}


def test_scores_that_were_edited_are_refused(tmp_path: Path) -> None:
    directory = evaluate(scoring(golden(tmp_path, ROWS), tmp_path / "run"), {})
    lines = directory.scores.read_bytes().splitlines()
    lines[3] = orjson.dumps(json.loads(lines[3]) | {"scores": {"exact": 1.0}})
    directory.scores.write_bytes(b"\n".join(lines) + b"\n")
    with raises(BatchError, "evaluation_damaged"):
        list(directory.read_scores(directory.read()))
