"""Adapters are found by name, and only the one in use is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inflight.runtime.engine.fake import FakeModelRunner
from inflight.runtime.engine.interface import BACKENDS, EngineOptions, load_model_runner
from tests.fixtures.errors import raises


def test_an_adapter_is_found_by_name() -> None:
    assert isinstance(load_model_runner(EngineOptions("fake", "", kv_cache_tokens=64)), FakeModelRunner)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with raises(ValueError, naming=("vllm", "openvino")):
        load_model_runner(EngineOptions("vllm", "", kv_cache_tokens=64))


@pytest.mark.parametrize("name", BACKENDS)
def test_the_runtime_takes_the_one_engine_in_use_and_nothing_else_heavy(name: str) -> None:
    """The process of the engine starts in a moment, and NVIDIA's container has neither OpenVINO nor torch."""
    if name == "openvino":
        pytest.importorskip("openvino")
    program = (
        "import importlib, sys\n"
        "import inflight.runtime.engine.supervisor, inflight.runtime.engine.worker, inflight.runtime.engine.interface\n"
        f"importlib.import_module({BACKENDS[name].split(':')[0]!r})\n"
        "print(*sorted({'torch', 'transformers', 'openvino', 'click', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    taken = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert taken == (["openvino"] if name == "openvino" else [])
