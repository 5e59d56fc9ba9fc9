"""LoRA adapters behind the LLM API: whole PEFT directories, by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.backends.llmapi.model_runner import LlmApiAdapters
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import FinishReason, GenerationRequest
from tests.fixtures.errors import raises
from tests.runtime.backends.llmapi.standin import STANDIN, engine_dir, options_of
from tests.runtime.engine.fake_engine_process import EventWaiter

WITH_LORA = LlmApiSettings("", {"enable_lora": True}, 8, 64, 4, 32, 8, (2,))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    directory = tmp_path / "formal"
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"")
    return directory


def test_a_directory_or_its_weights_name_an_adapter(adapter: Path) -> None:
    adapters = LlmApiAdapters((str(adapter), str(adapter / "adapter_model.safetensors")), WITH_LORA)
    assert adapters.lora_request_arguments(1) == {"lora_name": "1-formal", "lora_int_id": 1, "lora_path": str(adapter)}
    assert adapters.lora_request_arguments(2) == {"lora_name": "2-formal", "lora_int_id": 2, "lora_path": str(adapter)}
    adapters.check(GenerationRequest((1,), 5, adapter=2))
    with raises(RequestError, "invalid_parameter", naming=("lora_task_id", "3", "2")):
        adapters.check(GenerationRequest((1,), 5, adapter=3))


def test_weights_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "alone.safetensors").write_bytes(b"")
    with raises(ValueError, naming="adapter_config.json"):
        LlmApiAdapters((str(tmp_path / "alone.safetensors"),), WITH_LORA)


def test_an_engine_that_was_not_built_for_any_says_so(adapter: Path) -> None:
    with raises(ValueError, naming=("enable_lora", "lora_config")):
        LlmApiAdapters((str(adapter),), LlmApiSettings("", {}, 8, 64, 4, 32, 8, (2,)))


def test_answers_with_different_adapters_run_together(
    tmp_path: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits for none with another adapter: two endless answers make tokens side by side."""
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    directory = engine_dir(tmp_path / "engine", enable_lora=True, max_batch_size=3)
    engine = EngineProcess(options_of(directory, adapters=(str(adapter),)))
    plain, formal = EventWaiter(), EventWaiter()
    engine.submit(GenerationRequest((100,), 90_000), plain)
    engine.submit(GenerationRequest((100,), 5, adapter=1), formal)
    assert formal.end().finish_reason is FinishReason.LENGTH
    assert formal.tokens == [101] * 5
    assert not plain.ended.is_set()
    engine.close()
