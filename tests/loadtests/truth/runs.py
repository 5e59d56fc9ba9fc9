"""Runs of the load tests for tests, several at once, and the figures that are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.conductor import make_run
from loadtests.plan import Plan
from loadtests.record import Record
from loadtests.run_directory import RunDirectory
from loadtests.team import Team


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    plan: Plan
    summary: Summary
    records: list[Record]


def run_together(plans: Iterable[Plan], place: Path) -> list[Run]:
    """Make runs at the same time, each by a process of its own, in new directories under `place`."""
    numbered = list(enumerate(plans))
    with ThreadPoolExecutor(len(numbered)) as pool:
        return list(pool.map(lambda one: run_load(one[1], place / f"run-{one[0]}"), numbered))


def run_load(plan: Plan, path: Path) -> Run:
    """Make a run, in a new directory."""
    directory = RunDirectory.make(path)
    make_run(plan, directory, Team(), lambda progress: None)
    return Run(plan, summarize(directory), directory.records())


def write_prompts(file: Path, rows: Iterable[tuple[str, int]]) -> str:
    """A file of prompts, each with its `max_tokens`, as a workload names it."""
    lines = (json.dumps({"prompt": prompt, "max_tokens": max_tokens}) + "\n" for prompt, max_tokens in rows)
    file.write_text("".join(lines))
    return str(file)
