"""The job that the options of `inflight batch run` describe, by task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inflight.batch.job.spec import Job
from inflight.commands.batch.options import job_from_options, job_options, running_options

POSTGRESQL = "postgresql://app@db/shop"


def described(source: str, *arguments: str) -> Job:
    """The job of these options. Raises UsageError."""
    jobs: list[Job] = []

    @click.command()
    @job_options
    @running_options
    def command(**options: Any) -> None:
        jobs.append(job_from_options(source, options))

    CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
    return jobs[0]


@pytest.mark.parametrize(("task", "column"), [("embed", "text"), ("classify", "text"), ("rerank", "query")])
def test_each_task_has_its_own_column(task: str, column: str) -> None:
    job = described("docs.jsonl", "--out", "v.jsonl", "--task", task)
    assert (job.task, job.input.prompt) == (task, column)
    assert described("docs.jsonl", "--out", "v.jsonl", "--task", task, "--prompt", "prompt").input.prompt == "prompt"


def test_a_job_without_a_task_generates() -> None:
    job = described("docs.jsonl", "--out", "v.jsonl")
    assert (job.encode, job.input.prompt) == (None, "prompt")
    assert "encode" not in job.binding()  # a job of an earlier version goes on


def test_the_table_is_the_outputs_if_the_input_has_none() -> None:
    job = described("d.jsonl", "--out", POSTGRESQL, "--task", "embed", "--table", "docs", "--column", "e", "--id", "nr")
    assert (job.input.table, job.output.table, job.output.column, job.output.key) == (None, "docs", "e", "nr")
    job = described(POSTGRESQL, "--out", POSTGRESQL, "--task", "embed", "--table", "docs", "--column", "e")
    assert (job.input.table, job.output.table) == ("docs", "docs")


RETRIEVE = ("--retrieve", POSTGRESQL, "--retrieve-table", "docs")


def test_a_job_with_retrieval_is_bound_to_it() -> None:
    arguments = ("--out", "a.jsonl", "--template", "{{ passages }}", *RETRIEVE, "--retrieve-server", "encoders:8001")
    job = described("q.jsonl", *arguments, "--retrieve-top-k", "7", "--top-k", "3", "--retrieve-rerank")
    assert job.retrieval is not None
    assert (job.retrieval.table, job.retrieval.top_k, job.retrieval.nearest) == ("docs", 7, 28)
    assert (job.defaults.top_k, job.run_options.retrieve_servers) == (3, ("encoders:8001",))
    assert job.binding()["retrieval"]["address"] == POSTGRESQL
    assert "retrieval" not in described("q.jsonl", "--out", "a.jsonl").binding()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--retrieve", POSTGRESQL, "--template", "{{ passages }}"), "--retrieve-table"),
        (("--retrieve-rerank", "--template", "{{ passages }}"), "--retrieve"),
        ((*RETRIEVE, "--template", "{{ question }}"), "passages"),
        ((*RETRIEVE, "--task", "embed", "--template", "{{ passages }}"), "embed"),
        ((*RETRIEVE, "--template", "{{ passages }}", "--retrieve-top-k", "0"), "--retrieve-top-k"),
        ((*RETRIEVE, "--template", "{{ passages }}", "--ephemeral", "engine"), "--retrieve-server"),
    ],
)
def test_a_retrieval_that_is_not_whole_is_refused(arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(click.UsageError, match=named):
        described("q.jsonl", "--out", "a.jsonl", *arguments)


def test_a_schema_and_a_larger_model_are_bound_to_the_job(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"cups": {"type": "integer"}}}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    refine = ("--refine-with", "openai+http://127.0.0.1:1/v1?model=m", "--refine-when", "schema | logprob < -1.5")
    job = described("q.jsonl", "--out", "a.csv", "--schema", str(tmp_path / "s.json"), *refine, "--finish-by", "6h")
    assert job.defaults.answer_schema == job.binding()["defaults"]["answer_schema"] == schema
    assert job.kept[:2] == ("cups", "refined")
    assert job.binding()["refine"] == {"when": "schema | logprob < -1.5"}
    assert Job.model_validate_json(job.model_dump_json()) == job
    earlier = described("q.jsonl", "--out", "a.csv").binding()  # a job of an earlier version goes on
    assert "answer_schema" not in earlier["defaults"]
    assert "refine" not in earlier


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--schema", "no-such.json"), "no-such.json"),
        (("--schema", __file__), "JSON"),
        (("--task", "embed", "--schema", "s.json"), "--schema"),
        (("--refine-when", "schema"), "--refine-with"),
        (("--refine-with", "a:1"), "--refine-when"),
        (("--refine-with", "a:1", "--refine-when", "perhaps"), "perhaps"),
        (("--finish-by", "soon"), "--finish-by"),
        (("--finish-by", "6h", "--runner", "ray"), "--runner"),
        (("--price-per-million-input", "-1"), "--price-per-million-input"),
        (("--server", "openai+http://10.0.0.1/v1?key=TEA_KEY"), "TEA_KEY"),
        (("--refine-with", "openai+ftp://a", "--refine-when", "schema"), "openai"),
    ],
)
def test_options_of_answers_that_are_not_whole_are_refused(arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(click.UsageError, match=named):
        described("q.jsonl", "--out", "a.jsonl", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dimensions", "8"),
        ("--truncate",),
        ("--task", "embed", "--max-tokens", "5"),
        ("--task", "embed", "--chat"),
        ("--task", "embed", "--documents", "docs"),
        ("--task", "rerank", "--input-type", "query"),
        ("--task", "classify", "--index", "none"),
    ],
)
def test_an_option_of_another_task_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        described("docs.jsonl", "--out", "v.jsonl", *arguments)


@pytest.mark.parametrize("option", [("--index", "none"), ("--metric", "l2")])
def test_an_index_needs_a_table(option: tuple[str, str]) -> None:
    with pytest.raises(click.UsageError, match=option[0]):
        described("docs.jsonl", "--out", "v.parquet", "--task", "embed", *option)
    described("docs.jsonl", "--out", POSTGRESQL, "--table", "docs", "--task", "embed", *option)
