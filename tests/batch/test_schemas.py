"""Each answer matches the schema that its row asked for, or is an error; its properties are columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import GenerationDefaults, Job, OutputSpec
from inflight.batch.row_formats.answer_check import check_schema, schema_difference
from inflight.batch.runner import JobResult, JobRunner
from tests.batch.sample_jobs import job_of
from tests.batch.scripted_backend import Behaviour, ScriptedBackend, echo
from tests.fixtures.errors import raises

TEA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "grams": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name"],
}
GOOD = ('{"name": "Oolong", "grams": 5}', '{"name": "Sencha", "tags": ["green"]}')


def run(job: Job, behaviour: Behaviour, **defaults: Any) -> tuple[JobResult, ScriptedBackend]:
    job = job.model_copy(update={"defaults": GenerationDefaults(answer_schema=TEA, **defaults)})
    server = ScriptedBackend(behaviour)
    return JobRunner(job, JobDirectory.from_output(job.output), backends=[server]).run(), server


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_properties_are_columns(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"answers.{format}"
    job = job_of(tmp_path, GOOD).model_copy(update={"output": OutputSpec(address=str(path))})
    result, _ = run(job, echo)
    assert result.exit_code == 0
    if format == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(row["name"], row["grams"], row["tags"]) for row in rows] == [
            ("Oolong", 5, None), ("Sencha", None, ["green"])
        ]  # fmt: skip
    elif format == "csv":
        assert path.read_text().splitlines()[0].endswith("output_tokens,name,grams,tags")
        assert path.read_text().splitlines()[1].endswith(",Oolong,5,")
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        assert table["grams"].to_pylist() == [5, None]
        assert table["name"].to_pylist() == ["Oolong", "Sencha"]


@pytest.mark.parametrize(
    ("sampling", "attempts"), [({}, 1), ({"temperature": 1.0, "seed": 2}, 1), ({"temperature": 1.0}, 4)]
)
def test_a_wrong_answer_is_an_error_and_tried_again_only_if_the_next_may_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], attempts: int
) -> None:
    monkeypatch.setattr("inflight.batch.dispatch.endpoint._RETRY_WAIT_INITIAL", 0.01)
    result, server = run(job_of(tmp_path, ("tea",), max_attempts=4), echo, **sampling)
    assert (result.counts.codes, len(server.asked)) == ({"answer_invalid": 1}, attempts)
    assert result.counts.output_tokens == attempts  # they were computed, and paid


def test_a_sampled_row_may_match_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.batch.dispatch.endpoint._RETRY_WAIT_INITIAL", 0.01)

    async def better(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return GOOD[0] if len(server.asked) > 2 else prompt

    result, _ = run(job_of(tmp_path, ("tea",), max_attempts=9), better, temperature=1.0)
    assert (result.counts.ok, result.counts.retries, result.counts.output_tokens) == (1, 2, 3)


@pytest.mark.parametrize("name", ["text", "id", "prompt"])
def test_a_property_with_the_name_of_another_column_is_refused(tmp_path: Path, name: str) -> None:
    job = job_of(tmp_path, ("tea",))
    schema = {"type": "object", "properties": {name: {}}}
    source = job.input.model_copy(update={"keep": ("prompt",)})
    job = job.model_copy(update={"input": source, "defaults": GenerationDefaults(answer_schema=schema)})
    with raises(BatchError, "input_invalid", naming=(name,)):
        JobRunner(job, JobDirectory.from_output(job.output), backends=[ScriptedBackend()]).run()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"name": "Oolong"}', ""),
        ('{"name": 5}', "name"),
        ("{}", "required"),
        ('{"name": "x"', "not JSON"),
        ("[" * 100_000, "nested"),
        ('{"name": "\\ud800"}', "not JSON"),
        ('{"name": "x", "grams": 1e999}', "not JSON"),
    ],
)
def test_differences_name_the_place(text: str, part: str) -> None:
    assert (schema_difference(text, TEA) == "") if not part else (part in schema_difference(text, TEA))


_SLOW = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}


@pytest.mark.parametrize(
    "schema",
    [
        _SLOW,
        {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
        {**_SLOW, "$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": [{"$ref": "#/$defs/all"}]}
        | {"$defs": {"all": {"$schema": "http://json-schema.org/draft-07/schema#", **_SLOW}}},
    ],
)
def test_regular_expressions_take_no_time(schema: dict[str, Any]) -> None:
    check_schema(schema)
    key = "a" * 40 + "!"
    assert schema_difference(json.dumps({"a": key, key: key}), schema) == ""
    assert schema_difference("5", schema)


def test_an_answer_that_can_not_be_written_is_its_row_s_error(tmp_path: Path) -> None:
    async def half(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return "\ud800" if prompt == "tea" else prompt

    job = job_of(tmp_path, ("tea", "milk"))
    result = JobRunner(job, JobDirectory.from_output(job.output), backends=[ScriptedBackend(half)]).run()
    assert (result.counts.ok, result.counts.codes) == (1, {"answer_damaged": 1})
    assert result.counts.output_tokens == 2  # both were paid


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "tea"},
        {"properties": 5},
        {"$ref": "http://127.0.0.1:9/tea.json"},
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"items": {"$ref": "#/$defs/nope"}}}},
        {"properties": {"a": {"$schema": "urn:nope"}}, "$id": "urn:tea", "items": {"$ref": "urn:nope"}},
    ],
)
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with raises(InflightError, "invalid_parameter"):
        check_schema(schema)
