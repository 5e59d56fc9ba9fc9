"""Emitted repositories: Triton can load them, upstream's backend can read them, and they are as their golden files.

    INFLIGHT_UPDATE_GOLDEN=1 pytest tests/deploy/repository/test_golden_configs.py

writes the golden files again; `git diff tests/deploy/golden` then shows what a change does to each deployment. A file
has what the deployment changes of the committed repository, or of the deployment that it is based on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.manifest import GpuFeatures
from inflight.deploy.errors import DeployError
from inflight.deploy.repository import model_configs
from inflight.deploy.repository.configure import configure_repository
from inflight.deploy.repository.option_checks import check_options
from inflight.deploy.repository.options import DeploymentOptions
from tests.deploy.repository.golden_cases import CASES, GoldenCase, parse
from tests.fixtures.errors import raises
from tests.fixtures.manifests import engine_set
from tests.serving.contract.upstream_contract import Key, ours, upstreams
from tests.standins.tensorrtllm.parameters import GUIDES, read_parameters

CPP = [case for case in CASES.values() if case.target == "tensorrt-llm"]
ONLY_UPSTREAMS = ("tensorrt_llm", "ensemble")
MAY_BE_EMPTY = {*GUIDES, "max_tokens_in_paged_kv_cache", "draft_model_path"} | {
    "lora_directory",
    "inflight_version",
    "inflight_build",
}
"""Parameters of which nothing is a value: no guides, no draft model, the engine's own choice."""

by_name = pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
on_cpp = pytest.mark.parametrize("case", CPP, ids=lambda case: case.name)


@by_name
def test_a_repository_is_as_its_golden_files_say(case: GoldenCase, tmp_path: Path) -> None:
    if os.environ.get("INFLIGHT_UPDATE_GOLDEN"):
        case.file.write_text(case.differences())
    assert case.differences() == case.file.read_text()
    for text in case.write(tmp_path).values():
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert text == text_format.MessageToString(config, as_utf8=True)


@by_name
def test_every_configuration_loads_and_nothing_is_left_as_a_placeholder(case: GoldenCase) -> None:
    configs = case.configs()
    assert set(configs) == {"ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"}
    model_configs.check(configs)
    for model, config in configs.items():
        assert config.name == model
        assert "${" not in text_format.MessageToString(config, as_utf8=True)
        empty = {key for key, value in config.parameters.items() if not value.string_value}
        assert empty <= MAY_BE_EMPTY


@on_cpp
def test_upstreams_backend_reads_every_parameter(case: GoldenCase, tmp_path: Path) -> None:
    texts = case.write(tmp_path)
    config = parse(texts)["tensorrt_llm"]
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    parameters["gpt_model_path"] = str(tmp_path)
    assert read_parameters(parameters)["gpt_model_type"] == "inflight_fused_batching"
    assert set(parameters) <= {*upstreams_parameters(), "recv_poll_period_ms", "inflight_version", "inflight_build"}
    assert (config.backend, config.max_batch_size) == ("tensorrtllm", 64)
    assert {group.kind for group in config.instance_group} == {model_config_pb2.ModelInstanceGroup.KIND_CPU}


def upstreams_parameters() -> set[str]:
    return {name for model, kind, name in upstreams() if (model, kind) == ("tensorrt_llm", "parameter")}


def _upstreams_with_ours_optional() -> dict[Key, Mapping[str, Any]]:
    """Upstream's models, but for what `preprocessing`, which is ours, refuses by itself where it is missing."""
    theirs: dict[Key, Mapping[str, Any]] = dict(upstreams())
    for name in ("text_input", "max_tokens"):
        theirs["ensemble", "input", name] = {**theirs["ensemble", "input", name], "optional": True}
    return theirs


@on_cpp
@pytest.mark.parametrize("model", ONLY_UPSTREAMS)
@pytest.mark.parametrize("kind", ["input", "output"])
def test_the_backend_and_the_ensemble_have_upstreams_tensors_and_those_of_preprocessing(
    case: GoldenCase, model: str, kind: str
) -> None:
    theirs = {key: facts for key, facts in _upstreams_with_ours_optional().items() if key[:2] == (model, kind)}
    mine = {key: facts for key, facts in ours(case.configs()).items() if key[:2] == (model, kind)}
    rendered = {("ensemble", "input", name) for name in ("messages", "chat_template_kwargs", "prompt_token_ids")}
    assert set(mine) - set(theirs) == (rendered if (model, kind) == ("ensemble", "input") else set())
    assert {key: mine.get(key) for key in theirs} == theirs


def test_all_of_upstreams_wiring_stands_and_answers_are_told_apart() -> None:
    mine = ours(CASES["tensorrt-llm"].configs())
    theirs = _upstreams_with_ours_optional()
    wired = {key: facts for key, facts in theirs.items() if key[0] == "ensemble" and key[1] not in ("model",)}
    assert {key for key, facts in wired.items() if mine.get(key) != facts} == set()
    added = {key[1:] for key in mine if key[0] == "ensemble" and key not in upstreams()}
    assert added == {
        ("parameter", "inflight_build"),
        ("parameter", "inflight_served"),
        ("parameter", "inflight_version"),
        ("tensorrt_llm input", "return_num_input_tokens"),
        ("tensorrt_llm input", "return_num_output_tokens"),
        ("tensorrt_llm output", "num_input_tokens"),
        ("tensorrt_llm output", "num_output_tokens"),
        ("preprocessing input", "STREAM"),
        ("input", "messages"),
        ("input", "chat_template_kwargs"),
        ("input", "prompt_token_ids"),
        ("preprocessing input", "MESSAGES"),
        ("preprocessing input", "PROMPT_TOKEN_IDS"),
        ("preprocessing input", "CHAT_TEMPLATE_KWARGS"),
        ("postprocessing input", "BATCH_INDEX"),
        ("postprocessing input", "SEQUENCE_INDEX"),
    }


@on_cpp
def test_streams_are_kept_where_there_are_any(case: GoldenCase) -> None:
    configs = case.configs()
    decoupled = configs["tensorrt_llm"].model_transaction_policy.decoupled
    assert decoupled == case.options.decoupled
    for model, key in (("postprocessing", "cache_context"), ("preprocessing", "assign_sequence_ids")):
        assert configs[model].parameters[key].string_value == ("true" if decoupled else "false")
    assert configs["preprocessing"].parameters["end_ids_as_stop_words"].string_value == "true"


def test_instances_are_as_many_as_asked_for() -> None:
    def counts(name: str) -> dict[str, int]:
        configs = CASES[name].configs()
        return {model: config.instance_group[0].count for model, config in configs.items() if config.instance_group}

    once = dict.fromkeys(("preprocessing", "tensorrt_llm", "postprocessing"), 1)
    assert counts("tensorrt-llm") == counts("tensorrt-llm-two-gpus") == once
    assert counts("tensorrt-llm-two-instances") == {**once, "tensorrt_llm": 2, "preprocessing": 2}


def test_no_python_stands_where_the_backend_is_upstreams(tmp_path: Path) -> None:
    CASES["tensorrt-llm"].write(tmp_path)
    code = {path.parent.parent.name for path in (tmp_path / "repository").glob("*/1/model.py")}
    assert code == {"preprocessing", "postprocessing"}
    assert (tmp_path / "repository" / "tensorrt_llm" / "1").is_dir()


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", "TYPE_FP16"), ("float32", "TYPE_FP32"), (None, "TYPE_FP32")]
)
def test_logits_have_the_type_that_the_engine_gives_them(tmp_path: Path, dtype: str | None, expected: str) -> None:
    config = {} if dtype is None else {"logits_dtype": dtype}
    (tmp_path / "config.json").write_text(str({"pretrained_config": config}).replace("'", '"'))
    engines = engine_set(tmp_path, CASES["tensorrt-llm"].engine_manifest())
    configs = configure_repository(engines, tmp_path / "out", DeploymentOptions())
    types = {
        model_config_pb2.DataType.Name(tensor.data_type)
        for model in ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")
        for tensor in (*configs[model].input, *configs[model].output)
        if tensor.name.endswith("_logits") and not tensor.name.startswith(("return_", "use_"))
    }
    assert types == {expected}


@pytest.mark.parametrize("content", [None, "{", "[]", "[" * 200_000, '{"pretrained_config": {"logits_dtype": "int8"}}'])
def test_an_engine_that_does_not_say_it_is_damaged(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with raises(DeployError, "engine_damaged", naming="config.json"):
        engines = engine_set(tmp_path, CASES["tensorrt-llm"].engine_manifest())
        configure_repository(engines, tmp_path / "out", DeploymentOptions())


def test_llmapi_sizes_its_cache_itself_unless_it_is_told(tmp_path: Path) -> None:
    engines = engine_set(tmp_path, CASES["llmapi"].engine_manifest())
    plain = configure_repository(engines, tmp_path / "plain", DeploymentOptions())["tensorrt_llm"].parameters
    asked = DeploymentOptions(kv_cache_tokens=1000, max_num_sequences=7, max_num_tokens=70)
    values = configure_repository(engines, tmp_path / "told", asked)["tensorrt_llm"].parameters
    keys = ("inflight_engine", "max_tokens_in_paged_kv_cache", "max_num_sequences", "max_num_tokens")
    assert [plain[key].string_value for key in keys] == ["llmapi", "", "64", "8192"]
    assert [values[key].string_value for key in keys] == ["llmapi", "1024", "7", "70"]


@pytest.mark.parametrize("option", [{"draft_engine": Path("draft")}, {"prompt_lookup": True}])
def test_llmapi_is_told_of_speculation_when_it_is_built(option: dict[str, Any]) -> None:
    with raises(DeployError, "invalid_parameter", naming="model.yaml"):
        check_options(DeploymentOptions(**option), engine_set("/engines/demo", CASES["llmapi"].engine_manifest()))


@pytest.mark.parametrize("target", ["openvino", "llmapi"])
def test_an_adapter_is_a_directory_with_its_weights(tmp_path: Path, target: str) -> None:
    options, engines = DeploymentOptions(adapters=(tmp_path,)), engine_set(tmp_path, CASES[target].engine_manifest())
    with raises(DeployError, "invalid_parameter", naming="LoRA"):
        check_options(options, engines)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    check_options(options, engines)


@pytest.mark.parametrize("target", ["openvino", "llmapi"])
def test_engines_of_ours_take_parameters_by_name_too(tmp_path: Path, target: str) -> None:
    settings = {"exclude_input_in_output": "1", "skip_special_tokens": "no", "preprocessing_instance_count": "2"}
    case = GoldenCase("any", target, options=DeploymentOptions(kv_cache_tokens=8192, settings=settings))
    configs = parse(case.write(tmp_path))
    values = {model: config.parameters for model, config in configs.items()}
    assert values["tensorrt_llm"]["exclude_input_in_output"].string_value == "true"
    for model in ("tensorrt_llm", "postprocessing"):
        assert values[model]["skip_special_tokens"].string_value == "false"
    assert configs["preprocessing"].instance_group[0].count == 2


@pytest.mark.parametrize("target", ["openvino", "llmapi"])
def test_and_refuse_those_of_the_c_plus_plus_backend(target: str) -> None:
    with raises(DeployError, "invalid_parameter", naming=("cuda_graph_mode", target)):
        made = GoldenCase("any", target, manifest={"features": GpuFeatures()}).engine_manifest()
        check_options(DeploymentOptions(settings={"cuda_graph_mode": "true"}), engine_set("/engines/demo", made))
