"""A checkpoint and an engine of a test's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fixtures.engines import TinyCheckpoint, TinyEngine


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "checkpoint"))


@pytest.fixture
def engine(tmp_path: Path, checkpoint: Path, tiny_engine: TinyEngine) -> Path:
    """A copy of a whole engine, with this test's checkpoint as its source in the manifest."""
    return Path(shutil.copytree(tiny_engine("llama"), tmp_path / "engine"))
