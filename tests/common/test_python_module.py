"""A module runs with its arguments, and nothing of the current directory in its place, on each version of Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.common.child_process import python_module


@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_a_module_runs_with_its_arguments_and_none_of_the_current_directory(
    poisoned: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    (tmp_path / "given").write_text('{"a":1}')
    monkeypatch.setattr(sys, "version_info", version)
    command = python_module("json.tool", "--compact", str(tmp_path / "given"))
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == '{"a":1}\n'
    assert poisoned() == ""
