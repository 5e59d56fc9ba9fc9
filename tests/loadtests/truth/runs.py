"""Runs of the load's generator for tests, several at once, and the figures that are made of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary
from loadtests.plan import Plan
from loadtests.record import Record
from loadtests.run_directory import RunDirectory

_SECONDS = 120.0
"""Beyond what it was planned for, a run may take so long on a busy machine, with its start."""


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    plan: Plan
    summary: Summary
    records: list[Record]


def run_together(plans: Iterable[Plan], place: Path) -> list[Run]:
    """Make runs at the same time, each by a process of its own, in new directories under `place`."""
    begun = [_begin(plan, place / f"run-{number}") for number, plan in enumerate(plans)]
    with contextlib.ExitStack() as stack:
        for _, process in begun:
            stack.enter_context(process)
            stack.callback(process.kill)
        return [_end(directory, process) for directory, process in begun]


def write_prompts(file: Path, prompts: Iterable[str], max_tokens: int) -> str:
    """A file of prompts, a request each, as a workload names it."""
    rows = ({"prompt": prompt, "max_tokens": max_tokens} for prompt in prompts)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def _begin(plan: Plan, path: Path) -> tuple[RunDirectory, subprocess.Popen[str]]:
    directory = RunDirectory.make(path)
    directory.write_plan(plan)
    directory.write_facts({})
    command = [sys.executable, "-m", "loadtests.generator.main", str(path), "--workers", "1"]
    return directory, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _end(directory: RunDirectory, process: subprocess.Popen[str]) -> Run:
    plan = directory.plan()
    said, _ = process.communicate(timeout=plan.end + plan.grace + _SECONDS)
    assert process.returncode == 0, said
    return Run(plan, summarize(directory), directory.records())
