"""A checkpoint for one test, and building it with the stand-ins."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_engines.build import BuildOptions, Built, build_engine
from build_engines.tensorrt_llm.programs import Docker, Native
from build_engines.tensorrt_llm.recipe import read_recipe
from build_engines.tensorrt_llm.target import TensorRtLlmSettings
from tests.build_engines.build_runs import RecordedProgress
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.nvidia import NvidiaPrograms

Build = Callable[..., Built]


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "checkpoint"))


@pytest.fixture
def build(tmp_path: Path, checkpoint: Path, nvidia_programs: NvidiaPrograms) -> Build:
    """`build({"quantization": "fp8"})` builds `checkpoint` into tmp_path/engine."""

    def make(
        fields: dict[str, Any] | None = None,
        heard: RecordedProgress | None = None,
        docker: bool = False,
        force: bool = False,
        **options: Any,
    ) -> Built:
        programs = Docker() if docker else Native(nvidia_programs.examples)
        settings = TensorRtLlmSettings(read_recipe(None, fields or {}), programs)
        chosen = BuildOptions(target="tensorrt-llm", settings=settings, **options)
        return build_engine(str(checkpoint), tmp_path / "engine", chosen, progress=heard, force=force)

    return make
