"""Engines on the stand-in for TensorRT-LLM's LLM API, as several files of tests make them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inflight.runtime.engine.supervisor import EngineProcess
from tests.runtime.backends.llmapi.standin import STANDIN, STANDIN_OPTIONS, Engines, engine_dir, options_of


@pytest.fixture(scope="module")
def standin_llmapi() -> Iterator[None]:
    """On the path of the engines that a module's tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STANDIN))
        yield


@pytest.fixture
def llmapi_engines(tmp_path: Path, standin_llmapi: None) -> Iterator[Engines]:
    """Makes engines of a test's own: `llmapi_engines(wishes, restart=True, **arguments)`."""
    made: list[EngineProcess] = []

    def make(wishes: dict[str, Any] | None = None, restart: bool = False, **arguments: Any) -> EngineProcess:
        directory = engine_dir(tmp_path / f"engine-{len(made)}", {**STANDIN_OPTIONS, **(wishes or {})}, **arguments)
        made.append(EngineProcess(options_of(directory), restart=restart))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
