from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_engines.checkpoints.checkpoint import read_config, read_json
from build_engines.encoders.settings import EncoderSettings, detect_task, find_task, read_settings
from build_engines.errors import BuildError
from build_engines.manifest import EncoderTask
from tests.fixtures.encoders import tiny_encoder_checkpoint
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises

TYPE = "sentence_transformers.models."
Edit = Callable[[Path], object]


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., Path]:
    """`copied("embed", "bert")`: a copy of a tiny checkpoint without its weights."""

    def copy(task: EncoderTask, family: str = "bert") -> Path:
        source = tiny_encoder_checkpoint(task, family)
        return Path(shutil.copytree(source, tmp_path / "checkpoint", ignore=shutil.ignore_patterns("*.safetensors")))

    return copy


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(read_json(path) | fields))


def settings(directory: Path, task: EncoderTask, **options: Any) -> EncoderSettings:
    return read_settings(directory, read_config(directory), task, **options)


@pytest.mark.parametrize(
    ("task", "family"), [("embed", "bert"), ("embed", "qwen3"), ("rerank", "xlm-roberta"), ("classify", "modernbert")]
)
def test_the_task_is_read_from_the_checkpoint(task: EncoderTask, family: str) -> None:
    assert find_task(tiny_encoder_checkpoint(task, family)) == task


def test_a_causal_language_model_generates_unless_it_is_told_otherwise(tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint("qwen3")
    assert find_task(directory) == "generate"
    embedding = settings(directory, "embed")
    assert (embedding.pooling, embedding.normalize) == ("last_token", True)
    assert len(embedding.notes) == 1


def test_the_files_of_sentence_transformers_are_read(copied: Callable[..., Path]) -> None:
    directory = copied("embed")
    change(directory / "sentence_bert_config.json", max_seq_length=128, do_lower_case=True)
    change(directory / "config_sentence_transformers.json", default_prompt_name="query")
    embedding = settings(directory, "embed")
    assert embedding == EncoderSettings(
        "embed",
        max_seq_len=128,
        lower_case=True,
        pooling="mean",
        normalize=True,
        prompts={"query": "query: ", "document": "document: "},
        default_prompt="query",
    )
    assert settings(directory, "embed", pooling="cls", normalize=False).pooling == "cls"


@pytest.mark.parametrize(
    ("config", "own", "lengths"),
    [
        ({}, {}, None),
        ({"matryoshka_dimensions": [64, 16]}, {}, (16, 64)),
        ({"is_matryoshka": True}, {}, ()),
        ({}, {"truncate_dim": 16}, ()),
    ],
)
def test_the_lengths_that_vectors_may_have_are_read(
    copied: Callable[..., Path], config: dict[str, Any], own: dict[str, Any], lengths: tuple[int, ...] | None
) -> None:
    directory = copied("embed")
    change(directory / "config.json", **config)
    change(directory / "config_sentence_transformers.json", **own)
    assert settings(directory, "embed").matryoshka == lengths


@pytest.mark.parametrize("task", ["rerank", "classify"])
def test_the_files_of_a_cross_encoder_are_read(copied: Callable[..., Path], task: EncoderTask) -> None:
    directory = copied(task)
    own = {
        "model_type": "CrossEncoder",
        "activation_fn": "torch.nn.modules.linear.Identity",
        "prompts": {"ask": "query: "},
        "default_prompt_name": "ask",
    }
    (directory / "config_sentence_transformers.json").write_text(json.dumps(own))
    change(directory / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"})
    reranker = settings(directory, task)
    assert (reranker.activation, reranker.prompts, reranker.default_prompt) == (
        "none",
        {"ask": "query: "},
        "ask",
    )


@pytest.mark.parametrize(("mode", "pooling"), [("cls", "cls"), ("max", "max"), ("lasttoken", "last_token")])
def test_a_pooling_may_be_named(copied: Callable[..., Path], mode: str, pooling: str) -> None:
    directory = copied("embed")
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
    assert settings(directory, "embed").pooling == pooling


def test_positions_of_roberta_begin_after_the_padding(copied: Callable[..., Path]) -> None:
    directory = copied("rerank", "roberta")
    change(directory / "tokenizer_config.json", model_max_length=10**30)
    assert settings(directory, "rerank").max_seq_len == 512


@pytest.mark.parametrize(
    ("task", "fields", "activation"),
    [
        ("rerank", {}, "sigmoid"),
        ("rerank", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ("rerank", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ("classify", {}, "softmax"),
        ("classify", {"problem_type": "multi_label_classification"}, "sigmoid"),
        ("classify", {"problem_type": "regression"}, "none"),
    ],
)
def test_the_activation_is_read(
    copied: Callable[..., Path], task: EncoderTask, fields: dict[str, Any], activation: str
) -> None:
    directory = copied(task)
    change(directory / "config.json", **fields)
    classifier = settings(directory, task)
    assert classifier.activation == activation
    assert classifier.labels == (("negative", "neutral", "positive") if task == "classify" else ())


def with_modules(*kinds: str, paths: tuple[str, ...] = ("", "1_Pooling", "2_More", "3_More")) -> Edit:
    types = [kind if "." in kind else TYPE + kind for kind in kinds]
    content = json.dumps([{"type": kind, "path": path} for kind, path in zip(types, paths, strict=False)])
    return lambda directory: (directory / "modules.json").write_text(content)


def with_dense(**fields: Any) -> Edit:
    def edit(directory: Path) -> None:
        with_modules("Transformer", "Pooling", "Dense")(directory)
        (directory / "2_More").mkdir()
        (directory / "2_More" / "model.safetensors").touch()
        named = {"activation_function": "torch.nn.modules.linear.Identity", "module_input_name": "sentence_embedding"}
        (directory / "2_More" / "config.json").write_text(json.dumps(named | fields))

    return edit


def with_file(name: str, **fields: Any) -> Edit:
    return lambda directory: change(directory / name, **fields)


UNSUITABLE: list[tuple[Edit, str]] = [
    (with_modules("Transformer", "Pooling", "LayerNorm"), "unsupported_architecture"),
    (with_modules("Pooling", "Transformer"), "unsupported_architecture"),
    (with_modules("custom_st.Transformer", "Pooling"), "unsupported_architecture"),
    (with_modules("Transformer", "Pooling", paths=("0_Transformer", "1_Pooling")), "unsupported_architecture"),
    (with_modules("Transformer", "Pooling", paths=("", "../../etc")), "checkpoint_damaged"),
    (with_file("1_Pooling/config.json", pooling_mode_cls_token=True), "unsupported_architecture"),
    (with_file("1_Pooling/config.json", pooling_mode_mean_tokens=False), "unsupported_architecture"),
    (with_file("1_Pooling/config.json", include_prompt=False), "unsupported_architecture"),
    (with_file("config_sentence_transformers.json", default_prompt_name="other"), "checkpoint_damaged"),
    (with_file("config_sentence_transformers.json", prompts=["query: "]), "checkpoint_damaged"),
    (with_file("config_sentence_transformers.json", model_type="CrossEncoder"), "unsupported_architecture"),
    (with_file("config_sentence_transformers.json", truncate_dim=-1), "not_a_checkpoint"),
    (with_dense(module_output_name="scores"), "unsupported_architecture"),
    (with_dense(use_residual=True), "unsupported_architecture"),
    (with_file("config.json", auto_map={"AutoModel": "modeling.Model"}), "unsupported_architecture"),
    (with_file("config.json", quantization_config={"quant_method": "gptq"}), "unsupported_architecture"),
    (with_file("config.json", position_embedding_type="relative_key"), "unsupported_architecture"),
    (with_file("config.json", model_type="t5"), "unsupported_architecture"),
    (lambda directory: (directory / "modules.json").write_text("{}"), "checkpoint_damaged"),
]
"""What is changed in a checkpoint that embeds, and the code of its refusal."""

WRONG_TASKS: list[tuple[EncoderTask, EncoderTask, dict[str, Any], str]] = [
    ("classify", "rerank", {}, "invalid_parameter"),
    ("classify", "embed", {}, "invalid_parameter"),
    ("embed", "rerank", {}, "unsupported_architecture"),
    ("rerank", "rerank", {"pooling": "mean"}, "invalid_parameter"),
]
"""The task of a checkpoint, that of the build, its options, and the code of the refusal."""


@pytest.mark.parametrize(("edit", "code"), UNSUITABLE)
def test_what_cannot_be_built_is_refused(copied: Callable[..., Path], edit: Edit, code: str) -> None:
    directory = copied("embed")
    edit(directory)
    with raises(BuildError, code, naming=str(directory)):
        settings(directory, "embed")


@pytest.mark.parametrize("field", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_a_decoder_must_be_causal(copied: Callable[..., Path], field: dict[str, bool]) -> None:
    directory = copied("embed", "qwen3")
    change(directory / "config.json", **field)
    with raises(BuildError, "unsupported_architecture", naming=str(directory)):
        settings(directory, "embed")


@pytest.mark.parametrize(("of", "task", "options", "code"), WRONG_TASKS)
def test_a_task_must_fit_the_checkpoint(of: EncoderTask, task: EncoderTask, options: dict[str, Any], code: str) -> None:
    with raises(BuildError, code, naming="--pooling" if options else "--task"):
        settings(tiny_encoder_checkpoint(of), task, **options)


def test_labels_must_be_numbered(copied: Callable[..., Path]) -> None:
    directory = copied("classify")
    change(directory / "config.json", id2label={"0": "a", "2": "b"})
    with raises(BuildError, "not_a_checkpoint", naming="id2label"):
        detect_task(directory, read_config(directory))
