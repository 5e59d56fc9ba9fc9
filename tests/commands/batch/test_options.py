"""The job that the options of `inflight batch run` describe, by task."""

from __future__ import annotations

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
