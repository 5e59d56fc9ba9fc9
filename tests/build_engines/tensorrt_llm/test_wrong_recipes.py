"""Wrong recipes are refused before anything runs, in one sentence that names the field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.recipe import read_recipe
from build_engines.tensorrt_llm.target import plan_build
from tests.build_engines.tensorrt_llm.models import ARCHITECTURES, config_of, plan_of
from tests.build_engines.tensorrt_llm.wrong_recipes import CORPUS, LLAMA


def refusal(architecture: str, path: Path, **more: Any) -> BuildError:
    with pytest.raises(BuildError) as caught:
        plan_build(read_recipe(path, {}), Path("/models/m"), config_of(architecture) | more)
    return caught.value


@pytest.mark.parametrize("case", CORPUS, ids=range(len(CORPUS)))
def test_a_wrong_recipe_is_refused_in_one_sentence(tmp_path: Path, case: tuple[str, ...]) -> None:
    architecture, text, pattern, *code = case
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "recipe.yaml"
    path.write_text(text.replace("MODEL", str(tmp_path)))
    error = refusal(architecture, path)
    message = str(error)
    assert re.search(pattern, message), message
    assert error.code == (code[0] if code else "invalid_parameter")
    assert message.endswith((".", "?"))
    assert "\n" not in message


def test_the_corpus_is_large_enough_and_says_each_thing_once() -> None:
    assert len(CORPUS) >= 100
    assert len({case[:2] for case in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize(
    ("architecture", "method", "advice"),
    [
        (LLAMA, "mxfp4", "build from the original weights, or build this checkpoint with --target llmapi."),
        (LLAMA, "gptq", "build from the original weights."),
        ("GPT2LMHeadModel", "mxfp4", "build from the original weights."),
        ("GptOssForCausalLM", "mxfp4", "build it with --target llmapi."),
        ("GptOssForCausalLM", "gptq", "build its original weights with --target llmapi."),
    ],
)
def test_what_is_quantized_already_is_sent_only_where_it_is_read(
    tmp_path: Path, architecture: str, method: str, advice: str
) -> None:
    (tmp_path / "recipe.yaml").write_text("")
    error = refusal(architecture, tmp_path / "recipe.yaml", quantization_config={"quant_method": method})
    assert str(error).endswith(advice)


def test_awq_takes_matrices_that_its_blocks_fit(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("quantization: int4_awq\ntensor_parallel: 8\n")
    error = refusal(LLAMA, tmp_path / "recipe.yaml", intermediate_size=11008)
    assert "needs a multiple of 128 weights per row on each of 8 GPUs" in str(error)


@pytest.mark.parametrize("quantization", ["fp8", "w4a8_awq", "nvfp4"])
def test_an_fp8_cache_is_read_in_pages_where_products_are_fp8(quantization: str) -> None:
    plan = plan_of(ARCHITECTURES[LLAMA], {"quantization": quantization, "kv_cache_dtype": "fp8"})
    assert not plan.notes
    settled = plan.recipe
    assert (settled.paged_context_fmha, settled.fp8_context_fmha) == (True, True)
    assert (settled.kv_cache_reuse, settled.chunked_context) == (True, True)
    plain = plan_of(ARCHITECTURES[LLAMA], {"quantization": quantization}).recipe
    assert (plain.paged_context_fmha, plain.fp8_context_fmha) == (True, False)


def test_in_float32_prompts_are_not_read_in_pages() -> None:
    plan = plan_of(ARCHITECTURES[LLAMA], {"dtype": "float32"})
    assert not plan.recipe.paged_context_fmha
    assert plan.notes[0].startswith("In float32 prompts can't be read from the paged cache")
