"""Runs of the load tests for tests, several at once, and the figures that are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.plan import LoadPlan
from loadtests.record import RequestRecord
from loadtests.run.controller import run_load_test
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from tests.fixtures.load_runs import read_records


@dataclass(frozen=True)
class LoadRun:
    """A run that has ended."""

    plan: LoadPlan
    summary: Summary
    records: list[RequestRecord]


def run_together(plans: Iterable[LoadPlan], place: Path) -> list[LoadRun]:
    """Make runs at the same time, each by a separate process, in new directories under `place`."""
    numbered = list(enumerate(plans))
    with ThreadPoolExecutor(len(numbered)) as pool:
        return list(pool.map(lambda one: run_load(one[1], place / f"run-{one[0]}"), numbered))


def run_load(plan: LoadPlan, path: Path) -> LoadRun:
    """Make a run, in a new directory."""
    directory = RunDirectory.create(path)
    run_load_test(plan, directory, WorkerSpec(), lambda progress: None)
    return LoadRun(plan, summarize(directory), read_records(directory))


def write_prompts(file: Path, rows: Iterable[tuple[str, int]]) -> str:
    """A file of prompts, each with its `max_tokens`, as a workload names it."""
    lines = (json.dumps({"prompt": prompt, "max_tokens": max_tokens}) + "\n" for prompt, max_tokens in rows)
    file.write_text("".join(lines))
    return str(file)
