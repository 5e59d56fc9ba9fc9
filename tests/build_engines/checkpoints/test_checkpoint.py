from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.checkpoint import read_checkpoint
from build_engines.errors import BuildError
from build_engines.synthetic.write import write_synthetic_checkpoint
from tests.fixtures.errors import raises


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    directory = tmp_path / "sharded"
    directory.mkdir()
    write_synthetic_checkpoint("tiny-llama", directory, shard_bytes=300_000)
    return directory


def refusal(directory: Path) -> BuildError:
    with pytest.raises(BuildError) as caught:
        read_checkpoint(directory)
    return caught.value


def change_config(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_whole_checkpoint_is_read(checkpoint: Path) -> None:
    read = read_checkpoint(checkpoint)
    assert read.architecture == "LlamaForCausalLM"
    # Two embeddings of 1536 by 64, and two layers with their norms.
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 64 * 160 * 3 + 64 * 2
    assert read.parameters == 2 * 1536 * 64 + 2 * layer + 64
    assert [path.name for path in read.weights] == ["model.safetensors"]


def test_a_sharded_checkpoint_is_read_whole(sharded: Path, checkpoint: Path) -> None:
    assert len(read_checkpoint(sharded).weights) > 2
    assert read_checkpoint(sharded).parameters == read_checkpoint(checkpoint).parameters


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_file_that_the_system_can_not_read_is_one_sentence(checkpoint: Path, tmp_path: Path, name: str) -> None:
    (checkpoint / name).unlink()
    # A file of no length whose reading fails, for every user.
    (checkpoint / name).symlink_to("/proc/self/mem")
    with raises(BuildError, "checkpoint_damaged", naming="Input/output error"):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions())


def test_a_directory_of_gguf_files_names_them(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "model.Q4_K_M.gguf").write_bytes(b"GGUF")
    (checkpoint / "model.safetensors").replace(checkpoint / "model.GGUF")
    for place, name in ((tmp_path, "model.Q4_K_M.gguf"), (checkpoint, "model.GGUF")):
        assert name in str(refusal(place))


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    error = refusal(sharded)
    assert error.code == "checkpoint_damaged"
    assert shard.name in str(error)


def test_weights_that_are_there_twice_are_refused(sharded: Path, checkpoint: Path) -> None:
    shutil.copyfile(checkpoint / "model.safetensors", sharded / "model.safetensors")
    with raises(BuildError, "not_a_checkpoint", naming="model.safetensors.index.json"):
        read_checkpoint(sharded)


def test_an_index_of_the_single_file_is_no_second_set(checkpoint: Path) -> None:
    with safe_open(checkpoint / "model.safetensors", "np") as file:
        places = dict.fromkeys(file.keys(), "model.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert [path.name for path in read_checkpoint(checkpoint).weights] == ["model.safetensors"]


def truncate_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("change", "code", "naming"),
    [
        (lambda directory: (directory / "config.json").unlink(), "not_a_checkpoint", "has no config.json"),
        (lambda directory: (directory / "model.safetensors").unlink(), "not_a_checkpoint", "download the checkpoint"),
        (lambda directory: (directory / "tokenizer.json").unlink(), "not_a_checkpoint", "has no tokenizer"),
        (lambda directory: (directory / "config.json").write_bytes(b"{"), "checkpoint_damaged", "not valid JSON"),
        (lambda directory: (directory / "config.json").write_bytes(b"[]"), "checkpoint_damaged", "not a JSON object"),
        (lambda directory: (directory / "config.json").write_bytes(b"\xff"), "checkpoint_damaged", "not valid JSON"),
        (lambda directory: (directory / "config.json").write_text("[" * 100_000), "checkpoint_damaged", "valid JSON"),
        (lambda directory: (directory / "config.json").write_text('{"name": "x"}'), "not_a_checkpoint", "model_type"),
        (
            lambda directory: change_config(directory, architectures=["BertForSequenceClassification"]),
            "unsupported_architecture",
            "BertForSequenceClassification",
        ),
        (
            lambda directory: change_config(directory, quantization_config={"quant_method": "gptq"}),
            "unsupported_architecture",
            ("gptq", "--precision int8"),
        ),
        (
            lambda directory: (directory / "model.safetensors").rename(directory / "pytorch_model.bin"),
            "not_a_checkpoint",
            "convert them to safetensors",
        ),
        (truncate_weights, "checkpoint_damaged", "cut off"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_one_sentence(
    checkpoint: Path, change: Callable[[Path], object], code: str, naming: str | tuple[str, ...]
) -> None:
    change(checkpoint)
    with raises(BuildError, code, naming=naming) as caught:
        read_checkpoint(checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "code", "naming"),
    [
        ("x" * 300, "checkpoint_damaged", "File name too long"),
        ("nowhere", "checkpoint_not_found", "nowhere doesn't exist"),
        ("config.json", "checkpoint_not_found", "is a file, not a directory"),
    ],
)
def test_a_path_that_is_no_directory_is_one_sentence(checkpoint: Path, path: str, code: str, naming: str) -> None:
    with raises(BuildError, code, naming=naming):
        read_checkpoint(checkpoint / path)


def test_a_wrong_index_is_found(sharded: Path) -> None:
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    shutil.copyfile(second, first)
    with raises(BuildError, "checkpoint_damaged", naming="lacks the tensor"):
        read_checkpoint(sharded)
    (sharded / "model.safetensors.index.json").write_text("{}")
    with raises(BuildError, "checkpoint_damaged", naming="no weight_map"):
        read_checkpoint(sharded)


def change_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def add_template(directory: Path, name: str) -> None:
    further = directory / "additional_chat_templates"
    further.mkdir()
    (further / f"{name}.jinja").write_text("{{ tools }}")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_weights, (True, False, False)),
        (lambda directory: change_config(directory, rope_theta=1.0), (True, False, False)),
        (lambda directory: (directory / "tokenizer_config.json").write_text("{}"), (False, True, False)),
        (lambda directory: (directory / "chat_template.jinja").write_text("new"), (False, False, True)),
        (lambda directory: (directory / "chat_template.jinja").unlink(), (False, False, True)),
        (lambda directory: add_template(directory, "tool_use"), (False, False, True)),
        (lambda directory: (directory / "README.md").write_text("new"), (False, False, False)),
    ],
)
def test_hashes_follow_the_content(
    checkpoint: Path, change: Callable[[Path], object], expected: tuple[bool, bool, bool]
) -> None:
    def hashes() -> tuple[str, str, str | None]:
        read = read_checkpoint(checkpoint)
        return (
            read.hash_weights(lambda done, total: None),
            read.hash_tokenizer(),
            read.hash_chat_template(),
        )

    before = hashes()
    change(checkpoint)
    assert tuple(old != new for old, new in zip(before, hashes(), strict=True)) == expected


def test_hashing_says_how_far_it_is(checkpoint: Path) -> None:
    heard: list[tuple[int, int]] = []
    read = read_checkpoint(checkpoint)
    read.hash_weights(lambda done, total: heard.append((done, total)))
    assert heard[-1] == (read.weight_bytes, read.weight_bytes)
