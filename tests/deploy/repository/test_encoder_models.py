"""Encoders in a repository: their models beside those of an engine that generates, and alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build_engines.manifest import EncoderLimits, EncoderManifest, Manifest
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.assemble import AssemblyRequest, assemble_repository
from inflight.deploy.repository.configure import build_id, configure_repository
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.manifest import RepositoryManifest, verify_repository
from inflight.deploy.repository.model_names import ENCODER_MODELS
from inflight.deploy.repository.option_checks import check_options
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from tests.deploy.repository.tensorrt_llm.example_engines import gpu_manifest
from tests.fixtures.encoders import TinyEncoder
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.manifests import encoder_manifest, engine_set, manifest

GENERATION = {"ensemble", "preprocessing", "postprocessing", "tensorrt_llm", "tensorrt_llm_bls"}
EMBED, RERANK, CLASSIFY = encoder_manifest("embed"), encoder_manifest("rerank"), encoder_manifest("classify")
ON_GPU = encoder_manifest("embed", target="llmapi")


def parameters(config: Any) -> dict[str, str]:
    return {name: value.string_value for name, value in config.parameters.items()}


@pytest.mark.parametrize(
    ("manifests", "models"),
    [
        ((manifest(),), GENERATION),
        ((EMBED,), {"embedding"}),
        ((RERANK, CLASSIFY), {"rerank", "classify"}),
        ((manifest(), EMBED, RERANK, CLASSIFY), GENERATION | {"embedding", "rerank", "classify"}),
    ],
)
def test_a_repository_has_the_models_of_what_is_served(
    tmp_path: Path, manifests: tuple[Manifest | EncoderManifest, ...], models: set[str]
) -> None:
    configure_repository(engine_set("/engines/demo", *manifests), tmp_path / "out", DeploymentOptions())
    assert {path.name for path in (tmp_path / "out").iterdir()} == models
    assert all((tmp_path / "out" / model / "config.pbtxt").is_file() for model in models)


def test_encoders_change_nothing_of_the_other_models(tmp_path: Path) -> None:
    options = DeploymentOptions(kv_cache_tokens=4096)
    alone = configure_repository(engine_set("/engines/demo"), tmp_path / "alone", options)
    beside = configure_repository(engine_set("/engines/demo", manifest(), EMBED), tmp_path / "beside", options)
    assert {name: beside[name] for name in alone} == alone


def test_options_are_parameters_of_all_encoders_and_those_of_one_win(tmp_path: Path) -> None:
    asked = EncoderOptions(max_batch_tokens=100, max_batch_texts=9, max_wait_ms=300, num_requests=3, encoder_threads=4)
    options = DeploymentOptions(encoders=asked, parameters={"rerank": {"max_wait_ms": "7", "num_requests": "2"}})
    configs = configure_repository(engine_set("/engines/demo", EMBED, RERANK), tmp_path / "out", options)
    usual = configure_repository(engine_set("/engines/demo", EMBED), tmp_path / "usual", DeploymentOptions())
    names = ("engine_dir", "max_batch_tokens", "max_batch_texts", "max_wait_ms", "num_requests", "threads")
    values = {
        model: [parameters(config)[name] for name in (*names, "max_queue_texts")] for model, config in configs.items()
    }
    kept = parameters(usual["embedding"])["max_queue_texts"]
    assert values == {
        "embedding": ["/engines/demo", "100", "9", "300", "3", "4", kept],
        "rerank": ["/engines/demo", "100", "9", "7", "2", "4", kept],
    }


def test_an_encoder_with_limits_is_configured_by_them(tmp_path: Path) -> None:
    limits = EncoderLimits(max_batch_texts=32, max_batch_tokens=1024)
    engines = engine_set("/engines/demo", encoder_manifest("embed", target="tensorrt", limits=limits))

    def configured(name: str, **options: Any) -> tuple[str, str]:
        values = parameters(configure_repository(engines, tmp_path / name, DeploymentOptions(**options))["embedding"])
        return values["max_batch_tokens"], values["max_batch_texts"]

    assert configured("usual") == ("1024", "32")
    assert configured("lower", encoders=EncoderOptions(max_batch_tokens=100)) == ("100", "32")
    for options in (
        {"encoders": EncoderOptions(max_batch_tokens=1025)},
        {"parameters": {"embedding": {"max_batch_texts": "33"}}},
    ):
        with raises(DeployError, "invalid_parameter", naming=("embed-demo", "at most")):
            configured("higher", **options)


def test_threads_are_for_encoders_on_the_processor(tmp_path: Path) -> None:
    options = DeploymentOptions(encoders=EncoderOptions(encoder_threads=4))
    configs = configure_repository(engine_set("/engines/demo", ON_GPU, RERANK), tmp_path / "out", options)
    assert [parameters(configs[model])["threads"] for model in ("embedding", "rerank")] == ["0", "4"]


def test_clients_read_what_an_encoder_is(tmp_path: Path) -> None:
    engines = replace(engine_set(tmp_path, CLASSIFY), served_model_name="mood")
    config = configure_repository(engines, tmp_path / "out", DeploymentOptions(), show_directories=True)["classify"]
    values = parameters(config)
    assert json.loads(values["inflight_served"]) == {
        "model": "mood",
        "task": "classify",
        "dimensions": CLASSIFY.dimensions,
        "max_seq_len": CLASSIFY.max_seq_len,
        "labels": list(CLASSIFY.labels),
        "precision": "fp32",
        "target": "openvino",
        "max_batch_texts": int(values["max_batch_texts"]),
        "engine_dir": str(tmp_path),
    }
    assert values["inflight_build"] == build_id(CLASSIFY)


@pytest.mark.parametrize(
    "changes",
    [{"precision": "bf16"}, {"max_seq_len": 64}, {"prompts": {"query": "q: "}}, {"activation": "softmax"}],
)
def test_an_encoder_that_answers_otherwise_is_another_build(changes: dict[str, Any]) -> None:
    assert build_id(encoder_manifest("embed", **changes)) != build_id(EMBED)
    assert build_id(encoder_manifest("embed", name="other", created="later")) == build_id(EMBED)


@pytest.mark.parametrize(
    ("manifests", "options", "naming"),
    [
        ((EMBED,), {"kv_cache_tokens": 10}, "--kv-cache-tokens"),
        ((EMBED, RERANK), {"threads": 2, "prompt_lookup": True}, ("--threads", "--prompt-lookup")),
        ((EMBED, RERANK), {"served_model_name": "tea"}, "tea"),
        ((manifest(),), {"encoders": EncoderOptions(max_wait_ms=5)}, "--encoder-max-wait-ms"),
        ((gpu_manifest(),), {"encoders": EncoderOptions(encoder_threads=5)}, "--encoder-threads"),
        ((ON_GPU,), {"encoders": EncoderOptions(encoder_threads=5)}, "--encoder-threads"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    manifests: tuple[Manifest | EncoderManifest, ...], options: dict[str, Any], naming: str | tuple[str, ...]
) -> None:
    with raises(DeployError, "invalid_parameter", naming=naming):
        check_options(DeploymentOptions(**options), engine_set("/engines/demo", *manifests))


@pytest.mark.parametrize("model", ["rerank", "tensorrt_llm", "nothing"])
def test_parameters_of_a_model_that_is_not_served_are_refused(tmp_path: Path, model: str) -> None:
    with raises(DeployError, "invalid_parameter", naming=model):
        configure_repository(
            engine_set("/engines/demo", EMBED),
            tmp_path / "out",
            DeploymentOptions(parameters={model: {"threads": "1"}}),
        )


def test_each_engine_has_the_task_for_which_it_is_named(tiny_engine: TinyEngine, tiny_encoder: TinyEncoder) -> None:
    embed, rerank = tiny_encoder("embed"), tiny_encoder("rerank")
    engines = EngineSet.find(tiny_engine("llama"), DeploymentOptions(encoders=EncoderOptions(embed, rerank)))
    assert engines.tasks == ("generate", "embed", "rerank")
    assert engines.model_names == {
        "generate": "tiny-llama",
        "embed": "tiny-bert-embed",
        "rerank": "tiny-bert-rerank",
    }
    with raises(DeployError, "engine_incompatible", naming=("--classify", str(rerank))):
        EngineSet.find(embed, DeploymentOptions(encoders=EncoderOptions(classify=rerank)))
    with raises(DeployError, "invalid_parameter", naming=("--embed", str(embed))):
        EngineSet.find(embed, DeploymentOptions(encoders=EncoderOptions(embed=embed)))


def silent_copy(order: AssemblyRequest, out: Path) -> RepositoryManifest:
    out.mkdir()
    return assemble_repository(order, out)


def test_an_assembled_repository_holds_each_encoder_in_its_own_model(tiny_encoder: TinyEncoder, tmp_path: Path) -> None:
    options = DeploymentOptions(encoders=EncoderOptions(rerank=tiny_encoder("rerank")))
    engines = EngineSet.find(tiny_encoder("embed"), options)
    card = silent_copy(AssemblyRequest(engines, options, vendored=True), tmp_path / "out")
    assert (card.engine, card.encoders) == (None, engines.encoders)
    assert card == verify_repository(tmp_path / "out", hashes=True)
    assert card.engines.model_names == engines.model_names
    for task, made in engines.encoders.items():
        version = tmp_path / "out" / ENCODER_MODELS[task] / "1"
        assert EngineSet.find(version / "engine").manifests == {task: made}
        assert (version / "inflight.zip").is_file()
        assert 'string_value: "1/engine"' in (version.parent / "config.pbtxt").read_text()


def test_an_engine_that_stays_elsewhere_leaves_its_encoders_in_the_repository(
    tiny_encoder: TinyEncoder, tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    options = DeploymentOptions(encoders=EncoderOptions(embed=tiny_encoder("embed")))
    engines = EngineSet.find(tiny_engine("llama"), options)
    order = AssemblyRequest(engines, options, engine_path="/engines/llama")
    silent_copy(order, tmp_path / "out")
    assert not (tmp_path / "out/tensorrt_llm/1/engine").exists()
    assert (tmp_path / "out/embedding/1/engine/engine.json").is_file()


def test_what_encoders_a_repository_has_changes_its_digest(tiny_encoder: TinyEncoder, tiny_engine: TinyEngine) -> None:
    llama, embed = tiny_engine("llama"), tiny_encoder("embed")

    def digest(make: Callable[[], DeploymentOptions]) -> str:
        return AssemblyRequest(EngineSet.find(llama, make()), make()).options_digest()

    assert digest(DeploymentOptions) != digest(lambda: DeploymentOptions(encoders=EncoderOptions(embed=embed)))
