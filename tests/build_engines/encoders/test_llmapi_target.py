"""Engines of encoders for the LLM API's `encode`: which checkpoints, and what is in the directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.checkpoint import read_json
from build_engines.encoders.llmapi_target import model_yaml
from build_engines.errors import BuildError
from build_engines.llmapi.arguments import LlmArguments
from build_engines.manifest import EncoderManifest, EncoderTask, verify_engine
from tests.fixtures.encoders import tiny_encoder_checkpoint
from tests.fixtures.errors import raises

FILES = {"config.json", "model.safetensors", "tokenizer.json"}


def test_the_engine_is_the_checkpoint_and_the_arguments(tmp_path: Path) -> None:
    checkpoint, out = tiny_encoder_checkpoint("embed", "qwen3"), tmp_path / "engine"
    options = BuildOptions("llmapi", task="embed", max_seq_len=100, settings=LlmArguments(extra={"attn_backend": "X"}))
    notes = build_engine(str(checkpoint), out, options).notes
    verify_engine(out, hashes=True)
    built = EncoderManifest.read(out)
    assert (built.target, built.precision, built.max_seq_len) == ("llmapi", "bf16", 100)
    assert (built.inputs, built.dimensions, built.pooling, built.normalize) == (
        ("input_ids",),
        64,
        "last_token",
        True,
    )
    assert built.prompts
    assert {path.name for path in (out / "checkpoint").iterdir()} >= FILES
    assert (out / "tokenizer.json").is_file()
    assert yaml.safe_load((out / "model.yaml").read_text()) == {
        "encode_only": True,
        "dtype": "bfloat16",
        "max_seq_len": 100,
        "attn_backend": "X",
    }
    assert model_yaml(checkpoint, options) == (out / "model.yaml").read_text()
    ours, theirs = read_json(out / "checkpoint" / "config.json"), read_json(checkpoint / "config.json")
    assert ours == theirs | {"architectures": ["Qwen3ForTextEmbedding"]}
    assert any("LLM.encode" in note for note in notes)


def test_a_cross_encoder_has_segments_and_a_classifier_labels(tmp_path: Path) -> None:
    for task in ("rerank", "classify"):
        build_engine(str(tiny_encoder_checkpoint(task, "bert")), tmp_path / task, BuildOptions("llmapi"))
    reranker, classifier = EncoderManifest.read(tmp_path / "rerank"), EncoderManifest.read(tmp_path / "classify")
    assert (reranker.task, reranker.inputs) == ("rerank", ("input_ids", "token_type_ids"))
    assert (reranker.dimensions, reranker.activation, reranker.precision) == (1, "sigmoid", "fp16")
    assert (classifier.task, classifier.inputs, classifier.dimensions) == ("classify", ("input_ids",), 3)
    assert len(classifier.labels) == 3


@pytest.mark.parametrize(
    ("task", "family", "changes", "options", "code", "naming"),
    [
        ("embed", "bert", {}, {}, "unsupported_architecture", ("BertModel", "--target tensorrt")),
        ("classify", "roberta", {}, {}, "unsupported_architecture", "RobertaForSequenceClassification"),
        ("embed", "qwen3", {}, {"pooling": "mean"}, "unsupported_architecture", "mean"),
        ("rerank", "bert", {"hidden_act": "relu"}, {}, "unsupported_architecture", "relu"),
        ("rerank", "bert", {}, {"precision": "fp32"}, "invalid_parameter", "--precision fp32"),
        ("embed", "qwen3", {}, {"precision": "int8"}, "invalid_parameter", "--precision int8"),
        ("embed", "qwen3", {}, {"kv_precision": "fp8"}, "invalid_parameter", "--kv-cache-precision"),
        ("embed", "qwen3", {}, {"max_seq_len": 1 << 20}, "invalid_parameter", "--max-seq-len"),
        ("embed", "qwen3", {}, {"settings": LlmArguments(max_batch_size=3)}, "invalid_parameter", "max_batch_size"),
    ],
)
def test_what_encode_does_not_run_is_refused(
    tmp_path: Path,
    task: EncoderTask,
    family: str,
    changes: dict[str, Any],
    options: dict[str, Any],
    code: str,
    naming: str | tuple[str, ...],
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_encoder_checkpoint(task, family), checkpoint)
    config = read_json(checkpoint / "config.json") | changes
    (checkpoint / "config.json").write_text(json.dumps(config))
    with raises(BuildError, code, naming=naming):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions("llmapi", task=task, **options))
    assert not (tmp_path / "engine").exists()


def test_layers_after_the_model_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_encoder_checkpoint("embed", "qwen3"), checkpoint)
    modules = read_json(checkpoint / "modules.json", list)
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (checkpoint / "modules.json").write_text(json.dumps([*modules[:2], dense]))
    (checkpoint / "2_Dense").mkdir()
    (checkpoint / "2_Dense" / "config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    (checkpoint / "2_Dense" / "model.safetensors").write_bytes(b"")
    with raises(BuildError, "unsupported_architecture", naming="2_Dense"):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions("llmapi", task="embed"))


def test_vectors_are_not_cut(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_encoder_checkpoint("embed", "qwen3"), checkpoint)
    own = checkpoint / "config_sentence_transformers.json"
    own.write_text(json.dumps(read_json(own) | {"truncate_dim": 8}))
    with raises(BuildError, "unsupported_architecture", naming="truncate_dim 8"):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions("llmapi", task="embed"))
