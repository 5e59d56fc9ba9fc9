"""`inflight batch ...` where the jobs are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.command_runner import CommandRunner


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandRunner:
    monkeypatch.chdir(tmp_path)
    return CommandRunner(monkeypatch, capsys, "batch")
