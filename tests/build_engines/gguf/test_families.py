from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.checkpoint import read_checkpoint
from build_engines.errors import BuildError
from build_engines.gguf.header import read_gguf
from build_engines.gguf.unpack import unpack
from build_engines.gguf.weights import read_numbers
from build_engines.plan.model import read_model
from tests.build_engines.gguf.gguf_files import CASES, VOCABULARY, make_model, write_model
from tests.fixtures.errors import raises


@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_the_model_that_it_was_made_of(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model = make_model(case)
    file = write_model(case, model, tmp_path / "model.gguf")
    (tmp_path / "out").mkdir()
    unpack(file, tmp_path / "out", "F32", lambda done, total: None)
    again, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    ids = torch.randint(3, VOCABULARY, (2, 100))
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(ids).logits, model(ids).logits, rtol=0, atol=1e-4)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert read_checkpoint(file).parameters == parameters


def test_a_plan_reads_the_header(tmp_path: Path) -> None:
    case = CASES["qwen3 with experts"]
    model = make_model(case)
    planned = read_model(write_model(case, model, tmp_path / "model.gguf"))
    assert planned.parameters.total == sum(parameter.numel() for parameter in model.parameters())
    assert planned.shape.experts is not None


@pytest.mark.parametrize("quantization", ["Q8_0", "F16", "BF16"])
def test_quantized_numbers_are_computed(tmp_path: Path, quantization: str) -> None:
    kind = gguf.GGMLQuantizationType[quantization]
    numbers = torch.randn(300, 64).numpy()
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("token_embd.weight", gguf.quantize(numbers, kind), raw_dtype=kind)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    file = read_gguf(tmp_path / "model.gguf")
    read = read_numbers(file, file.tensors["token_embd.weight"])
    assert read == gguf.dequantize(gguf.quantize(numbers, kind), kind).ravel().tolist()


@pytest.mark.parametrize(
    ("family", "metadata", "naming"),
    [
        ("mamba", {}, "mamba"),
        ("llama", {"expert_count": 8}, "experts"),
        ("llama", {"rope.scaling.type": "dynamic"}, "rope.scaling.type"),
    ],
)
def test_other_models_are_refused_by_name(
    tmp_path: Path, family: str, metadata: dict[str, float | int | str], naming: str
) -> None:
    case = dataclasses.replace(CASES["llama"], metadata=metadata)
    file = write_model(case, make_model(case), tmp_path / "model.gguf")
    content = file.read_bytes()
    if family != "llama":
        file.write_bytes(content.replace(b"llama", family.encode()))
    with raises(BuildError, "unsupported_architecture", naming=naming):
        build_engine(str(file), tmp_path / "engine", BuildOptions(precision="int8"))
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("target", ["llmapi", "tensorrt-llm"])
def test_other_targets_refuse_the_format(tmp_path: Path, target: str) -> None:
    case = CASES["llama"]
    file = write_model(case, make_model(case), tmp_path / "model.gguf")
    with raises(BuildError, "unsupported_architecture", naming=target):
        build_engine(str(file), tmp_path / "engine", BuildOptions(target=target))
