"""The ONNX models from which TensorRT builds engines, computed by OpenVINO, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino
import pytest

from build_engines.checkpoints.checkpoint import read_checkpoint
from build_engines.encoders.export import load_graph
from build_engines.encoders.graph_options import GraphOptions
from build_engines.encoders.onnx_export import MODEL, ONNX_DIRECTORY, OnnxExportTask, export
from build_engines.errors import BuildError
from build_engines.manifest import EncoderTask, Precision
from build_engines.target import BuildOptions
from tests.build_engines.encoders.test_parity import Engine, assert_close, expected, random_texts
from tests.fixtures.encoders import tiny_encoder_checkpoint
from tests.fixtures.errors import raises
from tests.fixtures.nvidia import NvidiaPrograms

CASES: tuple[tuple[EncoderTask, str, Precision], ...] = (
    ("embed", "bert", "fp32"),
    ("embed", "xlm-roberta", "fp32"),
    ("embed", "modernbert", "fp32"),
    ("embed", "qwen3", "fp32"),
    ("rerank", "bert", "fp32"),
    ("classify", "roberta", "fp32"),
    ("embed", "bert", "fp16"),
    ("rerank", "qwen3", "bf16"),
)
SLOW: tuple[tuple[EncoderTask, str, Precision], ...] = (
    ("rerank", "qwen3", "fp32"),
    ("classify", "modernbert", "fp32"),
    ("embed", "modernbert", "bf16"),
    ("embed", "qwen3", "fp16"),
    ("rerank", "xlm-roberta", "bf16"),
)


def exported(out: Path, task: EncoderTask, family: str, precision: Precision) -> Engine:
    """Export a tiny model as a build does, without a process of its own."""
    options = GraphOptions.of(BuildOptions(task=task), precision)
    checkpoint = read_checkpoint(tiny_encoder_checkpoint(task, family), check=lambda *_: None)
    settings = options.settings_of(checkpoint.directory, checkpoint.config)
    facts = export(options.export_task(OnnxExportTask, checkpoint, settings, out, {}), lambda step: None)
    compiled = openvino.Core().compile_model(out / ONNX_DIRECTORY / MODEL, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return Engine(compiled, tuple(facts.inputs), facts.pad_id, facts.padding_side, facts.vocab_size, settings.pooling)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("task", "family", "precision"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_tensorrt_accepts_the_model_and_it_computes_what_transformers_does(
    tmp_path: Path, tensorrt_programs: NvidiaPrograms, task: EncoderTask, family: str, precision: Precision
) -> None:
    import tensorrt

    engine = exported(tmp_path, task, family, precision)
    logger = tensorrt.Logger()
    strong = 1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = tensorrt.Builder(logger).create_network(strong)
    parser = tensorrt.OnnxParser(network, logger)
    parsed = parser.parse_from_file(str(tmp_path / ONNX_DIRECTORY / MODEL))
    assert parsed, [str(parser.get_error(number)) for number in range(parser.num_errors)]
    assert set(network.inputs.values()) == {"INT64"}
    assert network.outputs == {"output": "FP32"}

    texts = random_texts(engine.vocabulary)
    paired = "token_type_ids" in engine.inputs
    types = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in texts] if paired else None
    reference = expected(tiny_encoder_checkpoint(task, family), task, engine.pooling, texts, types)
    computed = engine(texts, types=types)
    if precision == "fp32":
        assert_close(computed, reference, task, 0.9999)
    elif task == "embed":
        assert_close(computed, reference, task, 0.99)  # of random weights
    else:
        assert abs(computed - reference).max() < 0.2


def test_values_that_are_not_finite_fail_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def too_large(*arguments: Any, **named: Any) -> Any:
        graph = load_graph(*arguments, **named)
        with torch.no_grad():
            graph.base.embeddings.LayerNorm.weight.fill_(1e5)  # more than fp16 has
        return graph

    monkeypatch.setattr("build_engines.encoders.onnx_export.load_graph", too_large)
    with raises(BuildError, "invalid_parameter", naming="--precision fp16"):
        exported(tmp_path, "embed", "bert", "fp16")
