from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.capabilities.tensorrt_llm import CAPABILITIES
from build_engines.errors import BuildError
from build_engines.plan.fit import Fit
from build_engines.plan.formats import GPU_KV, GPU_WEIGHTS
from build_engines.plan.gpu_memory import Split
from build_engines.plan.gpus import GPUS
from build_engines.plan.memory_plan import MemoryPlan, PlanRequest, make_plan
from build_engines.plan.model import PlannedModel, read_model
from build_engines.plan.parameters import count_parameters
from build_engines.plan.size import GIB
from build_engines.plan.support_matrix import default_gpu_target
from build_engines.tensorrt_llm.recipe import Recipe
from build_engines.tensorrt_llm.rules.machine import check_machine
from build_engines.tensorrt_llm.target import plan_build
from tests.build_engines.plan.example_shapes import read
from tests.fixtures.errors import raises

_OPT_66B = {"hidden_size": 9216, "word_embed_proj_dim": 9216, "ffn_dim": 36864, "num_hidden_layers": 64}
_PHI_3_MEDIUM = {"hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40}


def model_of(name: str, **changes: Any) -> PlannedModel:
    shape = read(name, **changes)
    return PlannedModel(name, shape, count_parameters(shape), "config.json")


def plan(model: PlannedModel, gpu: str = "h100", *, formats: str = "", **wish: Any) -> MemoryPlan:
    """A plan for cards called `gpu`, or for `memory`; all formats, or the one of `formats` as "fp8/fp8"."""
    card = GPUS[gpu]
    weights, _, kv = formats.partition("/")
    settled: dict[str, Any] = {
        "weights": (GPU_WEIGHTS[weights],) if weights else tuple(GPU_WEIGHTS.values()),
        "kv": (GPU_KV[kv],) if kv else tuple(GPU_KV.values()),
    }
    device = {"memory": card.memory, "device": card.title, "sm": card.sm}
    return make_plan(model, PlanRequest(**settled | device | wish))


def test_what_the_build_refuses_is_not_recommended() -> None:
    result = plan(model_of("opt-13b", **_OPT_66B, num_attention_heads=72))
    assert result.recommended
    assert (result.recommended.weights.name, result.recommended.kv.name) == ("int8_wo", "bf16")
    refused = next(fit.reason for fit in result.fits if (fit.weights.name, fit.kv.name) == ("fp8", "bf16"))
    assert refused == "TensorRT-LLM 1.2 doesn't build OPTForCausalLM with quantization fp8"
    assert plan(model_of("opt-13b"), formats="bf16/fp8").recommended is None


def test_layers_are_split_where_the_family_can_be() -> None:
    # 10 KV heads don't go on 4 GPUs, and Phi-3 is not split by layers.
    phi = model_of("phi-3-mini", **_PHI_3_MEDIUM, num_key_value_heads=10)
    result = plan(phi, memory=12 * GIB, sm=None, devices=4, formats="fp8/bf16")
    assert result.recommended
    assert result.recommended.split == Split(2, 1)
    fields: dict[str, Any] = {
        "memory": 12 * GIB,
        "sm": None,
        "devices": 4,
        "formats": "fp8/bf16",
        "max_num_sequences": 32,
    }
    assert {fit.split.pipeline for fit in plan(phi, **fields).fits} == {1}
    same = model_of("phi-3-mini", **_PHI_3_MEDIUM, num_key_value_heads=10, architectures=["LlamaForCausalLM"])
    assert {fit.split.pipeline for fit in plan(same, **fields).fits} == {2}


def test_blocks_of_awq_stay_whole_on_each_gpu() -> None:
    # 11008 is 86 blocks of 128: whole on 1 and 2 GPUs, not on 4.
    llama = model_of("llama-2-7b")
    assert plan(llama, devices=4, formats="int4_awq/bf16", max_num_sequences=120).fits[0].split == Split(2, 2)
    assert plan(llama, devices=4, formats="fp8/bf16", max_num_sequences=120).fits[0].split == Split(4, 1)


def test_a_cache_that_costs_reuse_says_so() -> None:
    notes = plan(model_of("llama-3.1-8b"), formats="bf16/int8").fits[0].notes
    assert "prefixes are not reused" in notes[0]
    assert plan(model_of("llama-3.1-8b"), formats="fp8/fp8").fits[0].notes == ()


def builds(model: PlannedModel, fit: Fit, wish: PlanRequest) -> bool:
    """Whether a build of the recipe that the plan proposes would begin, asked of the build itself."""
    from build_engines.containers import ENGINE_LINE
    from build_engines.machine import Gpu, Machine

    shape = model.shape
    config = {
        "architectures": [shape.architecture],
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
    }
    recipe = Recipe(
        dtype="float16" if fit.weights.name == "fp16" else "bfloat16",
        quantization=fit.weights.name if fit.weights.name not in ("bf16", "fp16") else "none",  # type: ignore[arg-type]
        kv_cache_dtype=fit.kv.name if fit.kv.name in ("fp8", "int8") else "auto",  # type: ignore[arg-type]
        tensor_parallel=fit.split.tensor,
        pipeline_parallel=fit.split.pipeline,
    )
    assert wish.sm
    gpu = Gpu(0, wish.device, f"{wish.sm // 10}.{wish.sm % 10}", "580.95.05", wish.memory)
    try:
        settled = plan_build(recipe, Path("/"), config).recipe
        check_machine(settled, Machine((gpu,), {"tensorrt_llm": f"{ENGINE_LINE}.1"}), "here")
    except BuildError:
        return False
    return True


@pytest.mark.parametrize("gpu", ["a100-80gb", "h200", "b200", "rtx-5090"])
def test_plan_and_build_agree_on_every_architecture_and_format(gpu: str) -> None:
    for architectures in CAPABILITIES.values():
        for name in architectures:
            model = model_of("llama-2-7b", architectures=[name])
            result = plan(model, gpu, devices=2)
            assert result.recommended, name
            for fit in result.fits:
                assert (fit.refusal is None) == builds(model, fit, result.request), (
                    name,
                    fit.weights,
                    fit.kv,
                    fit.reason,
                )


def test_of_an_architecture_that_is_not_compiled_no_engine_is_planned() -> None:
    gemma = model_of("gemma-2-9b", model_type="gemma3_text")
    named = ("Gemma3ForCausalLM", "TensorRT-LLM 1.2", "--target llmapi")
    with raises(BuildError, "unsupported_architecture", naming=named):
        plan(gemma)
    assert plan(gemma, target="llmapi").recommended


@pytest.mark.parametrize(
    ("model", "changes", "target"),
    [
        ("llama-3.1-8b", {}, "tensorrt-llm"),
        ("gpt2", {}, "tensorrt-llm"),
        ("gemma-2-9b", {"model_type": "gemma3_text"}, "llmapi"),
    ],
)
def test_a_model_that_only_the_llm_api_runs_is_planned_for_it(model: str, changes: dict[str, Any], target: str) -> None:
    assert default_gpu_target(model_of(model, **changes)) == target


def test_what_the_llm_api_does_not_run_is_not_planned_for_it() -> None:
    with raises(BuildError, "unsupported_architecture", naming="GPT2LMHeadModel"):
        plan(model_of("gpt2"), target="llmapi")


@pytest.mark.parametrize(
    ("gpu", "refused"),
    [
        ("h100", {"int8_sq", "int8_wo", "int4_wo", "nvfp4"}),
        ("a100-80gb", {"fp8", "int8_sq", "int8_wo", "int4_wo", "w4a8_awq", "nvfp4"}),
        ("b200", {"int8_sq", "int8_wo", "int4_wo", "int4_awq", "w4a8_awq"}),
        ("rtx-5090", {"int8_sq", "int8_wo", "int4_wo", "int4_awq", "w4a8_awq"}),
    ],
)
def test_the_llm_api_has_what_it_reads_and_the_card_computes(gpu: str, refused: set[str]) -> None:
    result = plan(model_of("llama-3.1-8b"), gpu, target="llmapi")
    assert {fit.weights.name for fit in result.fits if fit.kv.name == "bf16" and fit.refusal} == refused
    assert all(fit.refusal for fit in result.fits if fit.kv.name == "int8")


def test_the_llm_api_takes_what_modelopt_has_quantized() -> None:
    result = plan(model_of("llama-3.1-70b"), formats="int4_awq/fp8", target="llmapi")
    assert result.recommended
    assert result.recommended.notes == (
        "The LLM API doesn't quantize weights: build from a checkpoint quantized by ModelOpt to int4_awq.",
    )
    assert plan(model_of("llama-3.1-8b"), formats="bf16/fp8", target="llmapi").fits[0].notes == ()


def quantized(directory: Path, algorithm: str, kv: str | None = None) -> PlannedModel:
    """Llama 3.1 8B as ModelOpt writes it: the quantization is beside its config.json."""
    from tests.build_engines.plan.published import SHAPES

    content = {"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": kv}}
    (directory / "config.json").write_text(json.dumps(SHAPES["llama-3.1-8b"]), encoding="utf-8")
    (directory / "hf_quant_config.json").write_text(json.dumps(content), encoding="utf-8")
    return read_model(directory)


def test_a_quantized_checkpoint_is_planned_as_it_is_for_the_llm_api(tmp_path: Path) -> None:
    model = quantized(tmp_path, "W4A16_AWQ", "FP8")
    result = plan(model, target="llmapi")
    assert [(fit.weights.name, fit.kv.name) for fit in result.fits if not fit.refusal] == [("int4_awq", "fp8")]
    assert result.notes == ()
    card = GPUS["h100"]
    default = make_plan(model, PlanRequest(card.memory, card.title, sm=card.sm, target="llmapi"))
    assert [(fit.weights.name, fit.kv.name) for fit in default.fits] == [("int4_awq", "bf16"), ("int4_awq", "fp8")]
    assert default.recommended
    assert default.recommended.notes == ()


def test_for_engines_a_quantized_checkpoint_is_planned_as_its_original(tmp_path: Path) -> None:
    result = plan(quantized(tmp_path, "FP8"))
    assert result.recommended
    assert result.recommended.weights.name == "bf16"
    assert "already quantized (modelopt)" in result.notes[0]


@pytest.mark.parametrize(
    ("algorithm", "code", "named"),
    [
        ("W8A16_GPTQ", "unsupported_architecture", "W8A16_GPTQ"),
        ("MIXED_PRECISION", "checkpoint_damaged", "quant_cfg.json"),
    ],
)
def test_a_quantization_that_the_llm_api_does_not_read_is_refused(
    tmp_path: Path, algorithm: str, code: str, named: str
) -> None:
    with raises(BuildError, code, naming=named):
        plan(quantized(tmp_path, algorithm), target="llmapi")
