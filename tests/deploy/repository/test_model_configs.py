from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.repository.configure import committed_repository
from inflight.deploy.repository.model_configs import Configs, check, load, set_parameters, write
from tests.fixtures.errors import raises


@pytest.fixture
def configs() -> Configs:
    return load(committed_repository())


def test_the_committed_repository_fits_together(configs: Configs) -> None:
    check(configs)
    assert set(configs) >= {"preprocessing", "tensorrt_llm", "postprocessing", "ensemble"}


def test_what_is_written_reads_back_the_same(configs: Configs, tmp_path: Path) -> None:
    set_parameters(configs["preprocessing"], {"tokenizer_dir": '/tmp/a "quoted" Straße'})
    for name in configs:
        (tmp_path / name).mkdir()
    write(configs, tmp_path)
    assert load(tmp_path) == configs


def test_a_parameter_that_the_model_does_not_declare_is_refused(configs: Configs) -> None:
    with raises(DeployError, "invalid_parameter", naming=("tokenizer", "tokenizer_dir")):
        set_parameters(configs["preprocessing"], {"tokenizer": "x"})


def step(configs: Configs, model: str) -> Any:
    return next(s for s in configs["ensemble"].ensemble_scheduling.step if s.model_name == model)


def tensor(tensors: Any, name: str) -> Any:
    return next(t for t in tensors if t.name == name)


def rename_model(configs: Configs) -> None:
    step(configs, "postprocessing").model_name = "afterwards"


def map_unknown_input(configs: Configs) -> None:
    step(configs, "tensorrt_llm").input_map["heat"] = "temperature"


def take_a_tensor_nobody_makes(configs: Configs) -> None:
    step(configs, "tensorrt_llm").input_map["temperature"] = "_heat"


def forget_a_required_input(configs: Configs) -> None:
    del step(configs, "tensorrt_llm").input_map["request_output_len"]


def map_unknown_output(configs: Configs) -> None:
    step(configs, "postprocessing").output_map["TEXT"] = "_text"


def make_a_tensor_twice(configs: Configs) -> None:
    step(configs, "postprocessing").output_map["OUTPUT"] = "num_output_tokens"


def change_an_input_type(configs: Configs) -> None:
    tensor(configs["ensemble"].input, "temperature").data_type = 12  # TYPE_FP64


def change_an_output_type(configs: Configs) -> None:
    tensor(configs["ensemble"].output, "text_output").data_type = 8  # TYPE_INT32


def forget_an_output(configs: Configs) -> None:
    del step(configs, "postprocessing").output_map["OUTPUT"]


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (rename_model, "step afterwards: there is no such model"),
        (map_unknown_input, "step tensorrt_llm: the model has no input 'heat'"),
        (take_a_tensor_nobody_makes, "step tensorrt_llm: nothing before it makes the tensor '_heat'"),
        (forget_a_required_input, "step tensorrt_llm: the input 'request_output_len' is required and not mapped"),
        (map_unknown_output, "step postprocessing: the model has no output 'TEXT'"),
        (make_a_tensor_twice, "step postprocessing: the tensor 'num_output_tokens' is produced twice"),
        (
            change_an_input_type,
            "input 'temperature' from 'temperature' is TYPE_FP32 at one end and TYPE_FP64 at the other",
        ),
        (change_an_output_type, "output 'text_output' is TYPE_INT32 at one end and TYPE_STRING at the other"),
        (forget_an_output, "no step makes the output 'text_output'"),
    ],
)
def test_broken_wiring_is_refused(configs: Configs, break_it: Callable[[Configs], None], sentence: str) -> None:
    break_it(configs)
    with pytest.raises(DeployError) as caught:
        check(configs)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [('name: "other"', ("'other'", "'one'")), ("name: ???", "one/config.pbtxt")],
)
def test_a_config_that_triton_would_not_take_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.pbtxt").write_text(text)
    with raises(DeployError, "server_start_failed", naming=sentence):
        load(tmp_path)


def test_a_directory_without_models_is_refused(tmp_path: Path) -> None:
    with raises(DeployError, "server_start_failed", naming="*/config.pbtxt"):
        load(tmp_path)
