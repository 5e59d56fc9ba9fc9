"""What `--dry-run` prints is what a build runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.programs import Docker, Native, Programs
from build_engines.tensorrt_llm.target import TensorRtLlmTarget, dry_run
from tests.build_engines.tensorrt_llm.conftest import Build
from tests.build_engines.tensorrt_llm.models import recipe_of
from tests.fixtures.errors import raises
from tests.fixtures.nvidia import NvidiaPrograms

FIELDS: dict[str, Any] = {"quantization": "int8_wo", "tensor_parallel": 2, "limits.max_batch_size": 8}


@pytest.mark.parametrize("docker", [False, True])
def test_a_build_runs_what_was_printed(
    tmp_path: Path, build: Build, checkpoint: Path, nvidia_programs: NvidiaPrograms, docker: bool
) -> None:
    programs: Programs = Docker() if docker else Native(nvidia_programs.examples)
    printed = dry_run(checkpoint, tmp_path / "engine", TensorRtLlmTarget(recipe_of(FIELDS), programs))
    build(FIELDS, docker=docker)
    log = (tmp_path / "engine" / "build.log").read_text()
    # A build writes beside the place until the engine is whole.
    partial, whole = str(tmp_path / ".engine.inflight-partial"), str(tmp_path / "engine")
    ran = [line.removeprefix("$ ").replace(partial, whole) for line in log.splitlines() if line.startswith("$ ")]
    assert ran == [command.shell() for command in printed.commands]
    if docker:
        assert [
            shlex.split(line)[-len(command.arguments) :]
            for line, command in zip(printed.lines[1:], printed.commands, strict=True)
        ] == [list(command.arguments) for command in printed.commands]


def test_a_rehearsal_refuses_as_the_build_would(tmp_path: Path, checkpoint: Path) -> None:
    target = TensorRtLlmTarget(recipe_of({"tensor_parallel": 3}), Native())
    with raises(BuildError, "invalid_parameter", naming=("tensor_parallel", "4")):
        dry_run(checkpoint, tmp_path / "engine", target)
    with raises(BuildError, "checkpoint_not_found", naming="nowhere"):
        dry_run(tmp_path / "nowhere", tmp_path / "engine", target)
