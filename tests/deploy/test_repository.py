from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.model_configs import Configs, load
from inflight.deploy.repository import DeploymentOptions, assemble
from tests.deploy.test_kv_budget import manifest


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def deployed(out: Path, options: DeploymentOptions) -> Configs:
    assemble(Path("/engines/demo"), manifest(), out, options)
    return load(out)


def test_every_option_reaches_the_parameter_that_it_is_for(tmp_path: Path) -> None:
    options = DeploymentOptions(
        kv_cache_tokens=4096, max_num_sequences=16, max_num_tokens=512, kv_cache_reuse=False, chunked_context=False
    )
    configs = deployed(tmp_path / "out", options)
    engine = parameters(configs["tensorrt_llm"])
    assert engine["gpt_model_path"] == "/engines/demo"
    assert engine["max_tokens_in_paged_kv_cache"] == "4096"
    assert engine["max_num_sequences"] == "16"
    assert engine["max_num_tokens"] == "512"
    assert engine["enable_kv_cache_reuse"] == "false"
    assert engine["enable_chunked_context"] == "false"
    assert parameters(configs["preprocessing"])["tokenizer_dir"] == "/engines/demo"
    assert parameters(configs["postprocessing"])["tokenizer_dir"] == "/engines/demo"


def test_without_options_what_is_committed_stays(tmp_path: Path) -> None:
    configs = deployed(tmp_path / "out", DeploymentOptions())
    engine = parameters(configs["tensorrt_llm"])
    assert engine["enable_kv_cache_reuse"] == "true"
    assert int(engine["max_num_tokens"]) > 0
    assert int(engine["max_tokens_in_paged_kv_cache"]) <= int(engine["max_num_sequences"]) * 2048


def test_a_relative_engine_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assemble(Path("engine"), manifest(), tmp_path / "out", DeploymentOptions())
    assert parameters(load(tmp_path / "out")["tensorrt_llm"])["gpt_model_path"] == str(tmp_path / "engine")


def test_models_are_there_with_their_code_and_nothing_else(tmp_path: Path) -> None:
    deployed(tmp_path / "out", DeploymentOptions())
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert "preprocessing/1/model.py" in files
    assert "ensemble/1" in files
    assert not [name for name in files if "__pycache__" in name or ".gitkeep" in name]


def test_further_parameters_win_over_the_usual_ones(tmp_path: Path) -> None:
    options = DeploymentOptions(parameters={"tensorrt_llm": {"inflight_engine": "fake", "max_num_tokens": "7"}})
    engine = parameters(deployed(tmp_path / "out", options)["tensorrt_llm"])
    assert (engine["inflight_engine"], engine["max_num_tokens"]) == ("fake", "7")


@pytest.mark.parametrize("further", [{"tensorrt_llm": {"invented": "1"}}, {"invented": {"tokenizer_dir": "1"}}])
def test_invented_names_are_refused_before_anything_is_written(
    tmp_path: Path, further: dict[str, dict[str, str]]
) -> None:
    with pytest.raises(DeployError, match="'invented'") as caught:
        deployed(tmp_path / "out", DeploymentOptions(parameters=further))
    assert caught.value.code == "invalid_parameter"
    assert not (tmp_path / "out").exists()
