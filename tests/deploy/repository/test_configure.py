from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.engine_files import EngineFile
from build_engines.errors import BuildError
from inflight import __version__
from inflight.deploy import memory
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.configure import DeploymentOptions, build_id, configure_repository
from inflight.deploy.repository.model_configs import Configs, load
from inflight.deploy.repository.option_checks import check_options
from tests.deploy.repository.golden_cases import GoldenCase
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.manifests import engine_set, manifest


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def deployed(out: Path, options: DeploymentOptions) -> Configs:
    configure_repository(engine_set("/engines/demo"), out, options)
    return load(out)


def test_every_option_reaches_the_parameter_that_it_is_for(tmp_path: Path) -> None:
    adapter = tmp_path / "one.safetensors"
    adapter.touch()
    options = DeploymentOptions(
        kv_cache_tokens=4096,
        max_num_sequences=16,
        max_num_tokens=512,
        max_queue_size=7,
        kv_cache_reuse=False,
        chunked_context=False,
        prompt_lookup=True,
        num_draft_tokens=3,
        wrap_token_ids=True,
        stream_interval=8,
        threads=3,
        adapters=(adapter, adapter),
    )
    configs = deployed(tmp_path / "out", options)
    engine = parameters(configs["tensorrt_llm"])
    assert engine["gpt_model_path"] == "/engines/demo"
    assert engine["max_tokens_in_paged_kv_cache"] == "4096"
    assert engine["max_num_sequences"] == "16"
    assert engine["max_num_tokens"] == "512"
    assert engine["enable_kv_cache_reuse"] == "false"
    assert engine["enable_chunked_context"] == "false"
    assert engine["prompt_lookup"] == "true"
    assert engine["num_draft_tokens"] == "3"
    assert engine["wrap_token_ids"] == "true"
    assert engine["stream_interval"] == "8"
    assert engine["threads"] == "3"
    assert json.loads(engine["lora_adapters"]) == [str(adapter), str(adapter)]
    assert engine["max_queue_size"] == "7"
    assert parameters(configs["preprocessing"])["tokenizer_dir"] == "/engines/demo"
    assert parameters(configs["postprocessing"])["tokenizer_dir"] == "/engines/demo"


def test_without_options_what_is_committed_stays(tmp_path: Path) -> None:
    configs = deployed(tmp_path / "out", DeploymentOptions())
    engine = parameters(configs["tensorrt_llm"])
    assert engine["enable_kv_cache_reuse"] == "true"
    assert int(engine["max_num_tokens"]) > 0
    assert int(engine["max_tokens_in_paged_kv_cache"]) <= int(engine["max_num_sequences"]) * 2048
    assert engine["prompt_lookup"] == "false"
    assert engine["draft_model_path"] == ""
    assert engine["stream_interval"] == "1"
    assert json.loads(engine["lora_adapters"]) == []
    assert int(engine["max_queue_size"]) > 0


def test_no_model_has_a_queue_policy_with_which_triton_holds_back_requests_of_the_same_moment(tmp_path: Path) -> None:
    configs = deployed(tmp_path / "out", DeploymentOptions(max_queue_size=7))
    assert not any(config.dynamic_batching.HasField("default_queue_policy") for config in configs.values())


@pytest.mark.parametrize("decoupled", [True, False])
def test_every_model_that_can_stream_does_so_only_where_wanted(tmp_path: Path, decoupled: bool) -> None:
    configs = deployed(tmp_path / "out", DeploymentOptions(decoupled=decoupled))
    policies = {name: config.model_transaction_policy.decoupled for name, config in configs.items()}
    assert {name for name, policy in policies.items() if policy} == ({"tensorrt_llm"} if decoupled else set())


def test_a_draft_engine_is_named_absolutely_and_its_cache_counts(
    tmp_path: Path, tiny_engine: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tiny_engine("llama").resolve()
    monkeypatch.chdir(draft.parent)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 26)
    alone = parameters(deployed(tmp_path / "alone", DeploymentOptions())["tensorrt_llm"])
    engine = parameters(
        deployed(tmp_path / "drafted", DeploymentOptions(draft_engine=Path(draft.name)))["tensorrt_llm"]
    )
    assert engine["draft_model_path"] == str(draft)
    assert int(engine["max_tokens_in_paged_kv_cache"]) < int(alone["max_tokens_in_paged_kv_cache"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (DeploymentOptions(draft_engine=Path("draft"), prompt_lookup=True), "prompt lookup"),
        (DeploymentOptions(num_draft_tokens=4), "draft tokens (4)"),
        (DeploymentOptions(reproducible=True), "weights at"),
        (DeploymentOptions(adapters=(Path("nothing.safetensors"),)), "nothing.safetensors"),
    ],
)
def test_options_that_can_not_be_used_are_refused(options: DeploymentOptions, sentence: str) -> None:
    with raises(DeployError, "invalid_parameter", naming=sentence):
        check_options(options, engine_set("/engines/demo"))


def test_a_draft_engine_that_is_none_is_refused(tmp_path: Path) -> None:
    with raises(BuildError, "engine_not_found", naming="draft"):
        check_options(DeploymentOptions(draft_engine=tmp_path / "draft"), engine_set("/engines/demo"))


def test_a_relative_engine_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configure_repository(engine_set("engine"), tmp_path / "out", DeploymentOptions())
    assert parameters(load(tmp_path / "out")["tensorrt_llm"])["gpt_model_path"] == str(tmp_path / "engine")


@pytest.mark.parametrize("target", ["openvino", "llmapi", "tensorrt-llm"])
@pytest.mark.parametrize("built", [None, "0.0.9"])
def test_every_model_tells_which_versions_made_the_deployment_and_the_engine(
    tmp_path: Path, target: str, built: str | None
) -> None:
    versions = {} if built is None else {"inflight": built}
    GoldenCase("", target, manifest={"versions": versions}).write(tmp_path)
    values = [parameters(config) for config in load(tmp_path / "repository").values()]
    assert {one["inflight_version"] for one in values} == {__version__}
    assert {one.get("inflight_engine_version") for one in values} == {built}
    assert len(values) == 5


def test_every_model_tells_which_engine_tokenizer_and_template_answer(tmp_path: Path) -> None:
    configure_repository(engine_set("engine"), tmp_path / "out", DeploymentOptions())
    assert {parameters(config)["inflight_build"] for config in load(tmp_path / "out").values()} == {
        build_id(manifest())
    }


@pytest.mark.parametrize("target", ["openvino", "llmapi", "tensorrt-llm"])
def test_clients_are_told_what_is_served_and_only_by_its_own_server_where_it_lies(tmp_path: Path, target: str) -> None:
    case = GoldenCase("", target)
    case.write(tmp_path)
    made = case.engine_manifest()
    engines = engine_set(tmp_path / "engine", made)
    configure_repository(engines, tmp_path / "served", case.options, show_directories=True)
    for repository, engine_dir in (("repository", None), ("served", str(tmp_path / "engine"))):
        for model in ("ensemble", "tensorrt_llm_bls"):
            served = json.loads(parameters(load(tmp_path / repository)[model])["inflight_served"])
            assert served.pop("engine_dir", None) == engine_dir
            names = ("target", "precision", "kv_cache_precision", "max_seq_len")
            assert {name: served[name] for name in names} == {name: getattr(made, name) for name in names}
            assert (served["model"], served["max_sequences"]) == (made.name, 64)


def test_clients_are_told_whether_the_engine_has_other_parameters(tmp_path: Path) -> None:
    def told(name: str, kv_cache_tokens: int | None = None, **further: str) -> str:
        options = DeploymentOptions(kv_cache_tokens=kv_cache_tokens, parameters={"tensorrt_llm": further})
        return str(
            json.loads(parameters(deployed(tmp_path / name, options)["ensemble"])["inflight_served"])["settings_sha256"]
        )

    first, same, other = told("first"), told("same", 4096), told("other", max_num_tokens="64")
    assert first == same != other  # by default, the cache's size follows from the free memory


def test_a_build_has_another_name_once_what_answers_is_another() -> None:
    first = manifest()
    moved = first.model_copy(
        update={"created": "later", "source": first.source.model_copy(update={"checkpoint": "elsewhere"})}
    )
    assert build_id(moved) == build_id(first)
    others: list[dict[str, Any]] = [
        {"precision": "int8"},
        {"kv_cache_precision": "u8"},
        {"properties": {"a": 1}},
        {"source": first.source.model_copy(update={"chat_template": "another"})},
        {"files": {**first.files, "weights.bin": EngineFile(sha256="0" * 64, bytes=1)}},
    ]
    assert len({build_id(first), *(build_id(first.model_copy(update=other)) for other in others)}) == 6


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


def test_what_one_model_is_told_for_all_reaches_all(tmp_path: Path) -> None:
    further = {"postprocessing": {"skip_special_tokens": "false"}}
    configs = deployed(tmp_path / "out", DeploymentOptions(parameters=further))
    models = ("postprocessing", "tensorrt_llm")
    assert {parameters(configs[model])["skip_special_tokens"] for model in models} == {"false"}


@pytest.mark.parametrize("further", [{"tensorrt_llm": {"invented": "1"}}, {"invented": {"tokenizer_dir": "1"}}])
def test_invented_names_are_refused_before_anything_is_written(
    tmp_path: Path, further: dict[str, dict[str, str]]
) -> None:
    with raises(DeployError, "invalid_parameter", naming="invented"):
        deployed(tmp_path / "out", DeploymentOptions(parameters=further))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("option", "value"), [("draft_engine", Path("draft")), ("prompt_lookup", True)])
def test_reproducible_answers_exclude_speculation(option: str, value: Any) -> None:
    engines = engine_set("/engines/demo", manifest("f32").model_copy(update={"precision": "fp32"}))
    check_options(DeploymentOptions(reproducible=True), engines)
    with raises(DeployError, "invalid_parameter", naming="--" + option.replace("_", "-")):
        check_options(DeploymentOptions(reproducible=True, **{option: value}), engines)


def test_a_reproducible_deployment_says_so_and_is_another_build(tmp_path: Path) -> None:
    plain, exact = (deployed(tmp_path / str(on), DeploymentOptions(reproducible=on)) for on in (False, True))
    builds = [parameters(configs["ensemble"])["inflight_build"] for configs in (plain, exact)]
    assert builds[1] == f"{builds[0]}-reproducible"
    served = [json.loads(parameters(configs["ensemble"])["inflight_served"]) for configs in (plain, exact)]
    assert [each.get("reproducible") for each in served] == [None, True]
    assert parameters(exact["tensorrt_llm"])["reproducible"] == "true"
