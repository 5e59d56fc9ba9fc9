"""A checkpoint and an engine of a test's own, and how torch computes here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.fixtures.engines import TinyCheckpoint, TinyEngine


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models spend more time on handing work to threads than on the work: tenfold where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "checkpoint"))


@pytest.fixture
def engine(tmp_path: Path, checkpoint: Path, tiny_engine: TinyEngine) -> Path:
    """A copy of a whole engine, with this test's checkpoint as its source in the manifest."""
    return Path(shutil.copytree(tiny_engine("llama"), tmp_path / "engine"))
