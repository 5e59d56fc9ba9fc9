"""Commands of ours, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.fixtures.command_runner import CommandRunner


@pytest.fixture
def runner_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], CommandRunner]:
    """`runner_of("generate")("tell", "--json")`."""
    return partial(CommandRunner, monkeypatch, capsys)


@pytest.fixture
def generate(runner_of: Callable[[str], CommandRunner]) -> CommandRunner:
    return runner_of("generate")


@pytest.fixture
def status(runner_of: Callable[[str], CommandRunner]) -> CommandRunner:
    return runner_of("status")


@pytest.fixture
def batch(runner_of: Callable[[str], CommandRunner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandRunner:
    """`inflight batch ...` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return runner_of("batch")


@pytest.fixture
def load(runner_of: Callable[[str], CommandRunner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandRunner:
    """`inflight load ...` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return runner_of("load")
