from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForSequenceClassification

from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.checkpoint import read_config, read_json
from build_engines.encoders.memory import plan_encoder, read_encoder_shape
from build_engines.errors import BuildError
from build_engines.manifest import EncoderManifest, EncoderTask
from build_engines.synthetic.encoder_shapes import FAMILIES
from tests.fixtures.encoders import MinilmEngine, TinyEncoder, tiny_encoder_checkpoint
from tests.fixtures.errors import raises


def test_an_engine_says_what_it_computes(tiny_encoder: TinyEncoder, minilm_engine: MinilmEngine) -> None:
    minilm = EncoderManifest.read(minilm_engine())
    assert (minilm.task, minilm.precision, minilm.dimensions, minilm.pooling, minilm.normalize) == (
        *("embed", "fp32", 384, "mean", True),
    )
    assert minilm.inputs == ("input_ids", "attention_mask")
    embedder = EncoderManifest.read(tiny_encoder("embed", "qwen3"))
    assert (embedder.pooling, embedder.padding_side, set(embedder.prompts)) == (
        *("last_token", "left", {"query", "document"}),
    )
    reranker = EncoderManifest.read(tiny_encoder("rerank", "bert"))
    assert (reranker.dimensions, reranker.activation, reranker.pooling) == (1, "sigmoid", None)
    assert "token_type_ids" in reranker.inputs
    classifier = EncoderManifest.read(tiny_encoder("classify", "roberta"))
    assert classifier.labels == ("negative", "neutral", "positive")


def test_the_tokenizer_neither_truncates_nor_pads(minilm_engine: MinilmEngine) -> None:
    tokenizer = Tokenizer.from_file(str(minilm_engine() / "tokenizer.json"))
    assert (tokenizer.truncation, tokenizer.padding) == (None, None)
    assert len(tokenizer.encode("tea " * 1000).ids) == 1002


def test_what_follows_the_pooling_and_lower_case_are_built_in(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_encoder_checkpoint("embed", "bert"), checkpoint)
    modules = json.loads((checkpoint / "modules.json").read_text())
    modules.insert(2, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    (checkpoint / "2_Dense").mkdir()
    (checkpoint / "2_Dense" / "config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    save_file({"linear.weight": torch.ones(8, 64)}, checkpoint / "2_Dense" / "model.safetensors")
    limits = checkpoint / "sentence_bert_config.json"
    limits.write_text(json.dumps(read_json(limits) | {"do_lower_case": True}))
    own = checkpoint / "config_sentence_transformers.json"
    own.write_text(json.dumps(read_json(own) | {"truncate_dim": 5}))
    # The smoke test runs it once.
    built = build_engine(str(checkpoint), tmp_path / "engine", BuildOptions(max_seq_len=100)).manifest
    assert isinstance(built, EncoderManifest)
    assert (built.dimensions, built.max_seq_len) == (5, 100)
    plan = plan_encoder(checkpoint, "embed", memory=1 << 30, device="here", max_seq_len=100, max_batch_tokens=100)
    assert built.longest_text_bytes == plan.fits[0].activations > 0
    tokenizer = Tokenizer.from_file(str(tmp_path / "engine" / "tokenizer.json"))
    assert tokenizer.encode("TEA").ids == tokenizer.encode("tea").ids


@pytest.mark.parametrize(
    ("options", "code", "naming"),
    [
        (BuildOptions(max_seq_len=513), "invalid_parameter", "--max-seq-len 513"),
        (BuildOptions("llmapi", task="embed"), "unsupported_architecture", "BertModel"),
        (BuildOptions("llmapi"), "unsupported_architecture", "BertModel"),
        (BuildOptions("tensorrt", task="generate"), "invalid_parameter", "--target tensorrt"),
        (BuildOptions("tensorrt-llm", task="rerank"), "invalid_parameter", "--target tensorrt-llm"),
        (BuildOptions(task="embed", kv_precision="u8"), "invalid_parameter", "--kv-cache-precision"),
        (BuildOptions(task="generate"), "unsupported_architecture", "BertModel"),
    ],
)
def test_options_must_fit_an_encoder(tmp_path: Path, options: BuildOptions, code: str, naming: str) -> None:
    with raises(BuildError, code, naming=naming):
        build_engine(str(tiny_encoder_checkpoint("embed", "bert")), tmp_path / "engine", options)
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["embed", "classify"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_plan_counts_the_parameters(family: str, task: EncoderTask) -> None:
    directory = tiny_encoder_checkpoint(task, family)
    kind = AutoModel if task == "embed" else AutoModelForSequenceClassification
    real = kind.from_pretrained(directory).num_parameters()
    shape, counts = read_encoder_shape(read_config(directory), str(directory), task)
    assert counts.total == pytest.approx(real, rel=0.04)
    plan = plan_encoder(directory, task, memory=1 << 30, device="the machine")
    assert plan.parameters == pytest.approx(real, rel=0.001)
    assert plan.recommended is not None
    assert plan.recommended.precision == "fp32"
    assert shape.hidden == 64
