"""Paths that quantize.py goes by the letters of, and texts that can't be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.rules.machine import check_calibration, check_path
from tests.build_engines.tensorrt_llm.models import ARCHITECTURES, recipe_of
from tests.fixtures.errors import raises

LLAMA = ARCHITECTURES["LlamaForCausalLM"]


def test_a_path_that_quantize_py_would_misread_is_told_before_it_does() -> None:
    """A checkpoint under "prompts" is taken for an MPT."""
    check_path(recipe_of({}), LLAMA, Path("/prompts/llama"))
    fp8 = recipe_of({"quantization": "fp8"})
    with raises(BuildError, "invalid_parameter", naming=("mpt", "/prompts/llama")):
        check_path(fp8, LLAMA, Path("/prompts/llama"))
    check_path(fp8, ARCHITECTURES["MPTForCausalLM"], Path("/models/mpt-7b"))


@pytest.mark.parametrize("name", ["cnn_dailymail", "my-ScienceQA", "science_qa_2", "pileval"])
def test_texts_that_would_be_read_as_a_dataset_of_that_name_are_told(tmp_path: Path, name: str) -> None:
    """Their column would be another one than ours, and the split too."""
    texts = tmp_path / name / "texts"
    texts.mkdir(parents=True)
    fields = {"quantization": "fp8", "calibration.dataset": str(texts)}
    with raises(BuildError, "invalid_parameter", naming="quantize.py"):
        check_calibration(recipe_of(fields))
    check_calibration(recipe_of(fields | {"quantization": "int8_wo"}))
    (tmp_path / "own").mkdir()
    check_calibration(recipe_of(fields | {"calibration.dataset": str(tmp_path / "own")}))


def test_texts_that_are_nowhere_are_told() -> None:
    with raises(BuildError, "invalid_parameter", naming="cnn_dailymail"):
        check_calibration(recipe_of({"quantization": "fp8", "calibration.dataset": "/nowhere"}))
