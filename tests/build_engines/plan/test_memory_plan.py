from __future__ import annotations

import time
from typing import Any

import pytest

from build_engines.cpu_precision import Processor
from build_engines.errors import BuildError
from build_engines.plan import memory_plan
from build_engines.plan.formats import kv_format, weight_format
from build_engines.plan.gpus import GPUS
from build_engines.plan.memory_plan import MemoryPlan, PlanRequest, make_plan
from build_engines.plan.model import PlannedModel
from build_engines.plan.parameters import count_parameters
from build_engines.plan.size import GIB
from tests.build_engines.plan.example_shapes import read
from tests.build_engines.plan.published_models import parameters_of, shape_of
from tests.fixtures.errors import raises


def plan(model: str, gpu: str | None = None, *, weights: str = "", kv: str = "", **wish: Any) -> MemoryPlan:
    """A plan for cards called `gpu`, or for `memory`; formats by name, with commas between."""
    embedded = wish.get("target") == "openvino"
    if gpu:
        card = GPUS[gpu]
        wish = {"memory": card.memory, "device": card.title, "sm": card.sm} | wish
    planned = PlannedModel(model, shape_of(model), parameters_of(model), "config.json")
    return make_plan(
        planned,
        PlanRequest(
            device=wish.pop("device", "the device"),
            weights=tuple(weight_format(name, openvino=embedded) for name in weights.split(",") if name),
            kv=tuple(kv_format(name, openvino=embedded) for name in kv.split(",") if name),
            **wish,
        ),
    )


def test_all_parts_together_stay_within_the_memory() -> None:
    for fit in plan("llama-3.1-8b", "l40s", max_num_sequences=8).fits:
        used = fit.footprint.fixed + fit.sequences * fit.footprint.sequence(fit.length)
        assert used <= fit.memory
        # a tenth of what is left stays free, and less than one sequence of the rest
        assert used > fit.memory - fit.memory * 0.1 - fit.footprint.sequence(fit.length)
        assert fit.needed <= fit.memory


def test_what_is_needed_is_just_enough() -> None:
    asked: dict[str, Any] = {"weights": "bf16", "kv": "bf16", "max_num_sequences": 20, "length": 4096}
    needed = plan("llama-3.1-8b", "l4", **asked).fits[0].needed
    assert plan("llama-3.1-8b", memory=needed + 2**20, **asked).recommended
    assert not plan("llama-3.1-8b", memory=needed - 2**20, **asked).recommended


def test_the_default_is_a_table_of_weights_and_caches() -> None:
    fits = plan("llama-3.1-8b", "h200").fits
    assert [fit.weights.name for fit in fits[::3]] == ["bf16", "fp8", "int8_wo", "int4_awq"]
    assert [fit.kv.name for fit in fits[:3]] == ["bf16", "fp8", "int8"]


def test_the_first_format_that_fits_is_recommended() -> None:
    best = plan("llama-3.1-70b", "h100", max_num_sequences=1).recommended
    assert best
    assert (best.weights.name, best.split.gpus) == ("fp8", 1)


def test_the_fewest_gpus_come_first() -> None:
    best = plan("llama-3.1-70b", "h100", devices=8, max_num_sequences=16).recommended
    assert best
    assert (best.weights.name, best.split.tensor, best.split.pipeline) == ("bf16", 4, 1)
    more = plan("llama-3.1-70b", "h100", devices=8, max_num_sequences=128).recommended
    assert more
    assert more.split.gpus == 8


def test_what_is_recommended_holds_together() -> None:
    for model in ("qwen2.5-0.5b", "llama-3.1-8b", "gemma-2-9b", "mixtral-8x7b"):
        best = plan(model, "h200").recommended
        assert best
        assert best.sequences >= best.max_batch_size
        assert best.max_num_tokens >= best.max_batch_size
        assert best.length <= shape_of(model).positions


def test_half_the_cache_holds_twice_the_tokens() -> None:
    bf16, fp8, _ = plan("llama-3.1-8b", "h100", weights="fp8", max_num_sequences=4).fits
    assert fp8.kv_tokens == pytest.approx(2 * bf16.kv_tokens, rel=0.001)
    assert fp8.kv_bytes == bf16.kv_bytes


def test_formats_that_a_card_lacks_are_told_and_never_recommended() -> None:
    result = plan("llama-3.1-8b", "a100-80gb")
    lacking = {(fit.weights.name, fit.kv.name): fit.reason for fit in result.fits}
    reason = "NVIDIA A100-SXM4-80GB has compute capability 8.0, and fp8 needs 8.9"
    assert lacking["fp8", "bf16"] == lacking["bf16", "fp8"] == reason
    assert lacking["bf16", "bf16"] is lacking["int4_awq", "int8"] is None
    none = plan("llama-3.1-8b", "a100-80gb", weights="fp8")
    assert none.recommended is None
    assert none.advice
    assert none.advice.startswith(f"Nothing fits: {reason}; it would fit with --precision bf16")


def test_nvfp4_takes_blackwell() -> None:
    assert plan("llama-3.1-8b", "h200", weights="nvfp4").recommended is None
    assert plan("llama-3.1-8b", "b200", weights="nvfp4").recommended


@pytest.mark.parametrize("gpu", ["b200", "b300"])
def test_integers_are_not_recommended_where_no_engine_takes_them(gpu: str) -> None:
    result = plan("llama-3.1-405b", gpu, devices=2)
    integers = [fit for fit in result.fits if "int" in fit.weights.name or fit.kv.name == "int8"]
    assert len(integers) == 9
    assert all("is not supported there by trtllm-build" in (fit.reason or "") for fit in integers)
    assert result.recommended
    assert result.recommended.weights.name in ("fp8", "nvfp4")
    assert plan("llama-3.1-405b", "rtx-5090", devices=32, weights="int4_awq", kv="int8").recommended


def test_many_layers_with_windows_are_planned_at_once() -> None:
    shape = read("gemma-2-9b", num_hidden_layers=1000, sliding_window=4000)
    model = PlannedModel("deep", shape, count_parameters(shape), "config.json")
    begun = time.process_time()
    result = make_plan(model, PlanRequest(GPUS["h100"].memory, "the device", devices=64, sm=90))
    assert time.process_time() - begun < 10
    assert result.advice or result.recommended


def test_where_nothing_fits_one_sentence_says_what_would() -> None:
    result = plan("llama-3.1-70b", "h100", weights="fp8", kv="fp8", max_num_sequences=64)
    assert result.recommended is None
    assert result.advice
    assert result.advice.count(". ") == 0
    assert "64 sequences of 8,192 tokens need at least" in result.advice
    assert "NVIDIA H100 80GB HBM3 has 79.6 GiB" in result.advice
    for words in ("--gpus 4 (fp8 weights)", "--max-seq-len ", "--max-num-sequences "):
        assert words in result.advice


@pytest.mark.parametrize("change", ["gpus", "length", "max_num_sequences"])
def test_what_the_sentence_proposes_does_fit(change: str) -> None:
    asked: dict[str, Any] = {"weights": "fp8", "kv": "fp8", "max_num_sequences": 64}
    advice = plan("llama-3.1-70b", "h100", **asked).advice
    assert advice
    option = {"gpus": "--gpus ", "length": "--max-seq-len ", "max_num_sequences": "--max-num-sequences "}[change]
    value = int(advice.partition(option)[2].replace(".", " ").replace(",", " ").split()[0])
    better = asked | {"devices" if change == "gpus" else change: value}
    assert plan("llama-3.1-70b", "h100", **better).recommended
    worse = {"gpus": value // 2, "length": value + 32, "max_num_sequences": value + 1}[change]
    assert not plan("llama-3.1-70b", "h100", **better | {"devices" if change == "gpus" else change: worse}).recommended


def test_a_model_that_nothing_helps_is_too_large() -> None:
    advice = plan("llama-3.1-405b", memory=8 * GIB, target="openvino").advice
    assert advice
    assert advice.endswith("use a smaller model.")


def test_a_length_beyond_the_model_is_refused() -> None:
    with raises(BuildError, "invalid_parameter", naming="4,096"):
        plan("llama-2-7b", "h100", length=4097)
    assert plan("llama-2-7b", "h100").length == 4096


def test_windows_come_as_the_pattern_that_repeats() -> None:
    assert plan("gemma-2-9b", "h100").max_attention_window == (4096, 8192)
    assert plan("mistral-7b-v0.1", "h100").max_attention_window == (4096,)
    assert plan("mistral-7b-v0.1", "h100", length=4096).max_attention_window == ()
    assert plan("llama-3.1-8b", "h100").max_attention_window == ()
    assert plan("gemma-2-9b", memory=64 * GIB, target="openvino").max_attention_window == ()


def test_the_embedded_engine_keeps_whole_sequences() -> None:
    fit = plan("mistral-7b-v0.1", memory=64 * GIB, target="openvino", kv="bf16", length=32768).fits[0]
    assert fit.footprint.sequence(32768) == 32768 * fit.footprint.kv_token


@pytest.mark.parametrize(("features", "precision"), [(("AMX",), "bf16"), (("VNNI",), "int8")])
def test_on_a_processor_the_precision_that_a_build_chooses_is_recommended(
    monkeypatch: pytest.MonkeyPatch, features: tuple[str, ...], precision: str
) -> None:
    monkeypatch.setattr(memory_plan, "find_processor", lambda: Processor("Xeon", 2, features))
    best = plan("llama-3.1-8b", memory=64 * GIB, target="openvino").recommended
    assert best is not None
    assert best.weights.name == precision
