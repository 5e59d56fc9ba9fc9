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
from build_engines.checkpoints.locate import locate_checkpoint
from build_engines.errors import BuildError
from build_engines.progress import NoBuildProgress
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
    found = read_checkpoint(checkpoint)
    assert found.architecture == "LlamaForCausalLM"
    # Two embeddings of 1536 by 64, and two layers with their norms.
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 64 * 160 * 3 + 64 * 2
    assert found.parameters == 2 * 1536 * 64 + 2 * layer + 64
    assert [path.name for path in found.weights] == ["model.safetensors"]


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


def test_a_path_that_the_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    error = refusal(tmp_path / ("x" * 300))
    assert error.code == "checkpoint_damaged"
    assert "File name too long" in str(error)


def test_no_such_directory(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nowhere")
    assert error.code == "checkpoint_not_found"
    assert "nowhere doesn't exist" in str(error)


def test_gguf_is_named(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.Q4_K_M.gguf"
    file.write_bytes(b"GGUF")
    (checkpoint / "model.safetensors").replace(checkpoint / "model.GGUF")
    for place in (file, tmp_path, checkpoint):
        assert "GGUF, which is not supported; use the original" in str(refusal(place))
    with raises(BuildError, "not_a_checkpoint", naming="GGUF"):
        locate_checkpoint("bartowski/Qwen2.5-0.5B-Instruct-GGUF", NoBuildProgress())


def test_a_file_is_no_checkpoint(checkpoint: Path) -> None:
    assert "is a file, not a directory" in str(refusal(checkpoint / "config.json"))


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "download the checkpoint again"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_directory_without_one_of_its_parts_is_no_checkpoint(checkpoint: Path, missing: str, says: str) -> None:
    (checkpoint / missing).unlink()
    error = refusal(checkpoint)
    assert error.code == "not_a_checkpoint"
    assert says in str(error)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_garbled_config_is_one_sentence(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "config.json").write_bytes(content)
    error = refusal(checkpoint)
    assert error.code == "checkpoint_damaged"
    assert "\n" not in str(error)


def test_a_config_of_something_else_is_no_checkpoint(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"name": "package"}')
    assert refusal(checkpoint).code == "not_a_checkpoint"


def test_a_model_that_generates_no_text_is_refused(checkpoint: Path) -> None:
    change_config(checkpoint, architectures=["BertForSequenceClassification"])
    error = refusal(checkpoint)
    assert error.code == "unsupported_architecture"
    assert "BertForSequenceClassification" in str(error)


def test_a_quantized_checkpoint_is_refused_with_the_way_out(checkpoint: Path) -> None:
    change_config(checkpoint, quantization_config={"quant_method": "gptq"})
    error = refusal(checkpoint)
    assert error.code == "unsupported_architecture"
    assert "gptq" in str(error)
    assert "--precision int8" in str(error)


def test_pickled_weights_are_refused_with_the_way_out(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    error = refusal(checkpoint)
    assert error.code == "not_a_checkpoint"
    assert "convert them to safetensors" in str(error)


def test_a_truncated_weight_file_is_found(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    error = refusal(checkpoint)
    assert error.code == "checkpoint_damaged"
    assert "cut off" in str(error)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    error = refusal(sharded)
    assert error.code == "checkpoint_damaged"
    assert shard.name in str(error)


def test_shards_that_were_mixed_up_are_found(sharded: Path) -> None:
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    shutil.copyfile(second, first)
    assert "lacks the tensor" in str(refusal(sharded))


def test_weights_that_are_there_twice_are_refused(sharded: Path, checkpoint: Path) -> None:
    shutil.copyfile(checkpoint / "model.safetensors", sharded / "model.safetensors")
    with raises(BuildError, "not_a_checkpoint", naming="model.safetensors.index.json"):
        read_checkpoint(sharded)


def test_an_index_of_the_single_file_is_no_second_set(checkpoint: Path) -> None:
    with safe_open(checkpoint / "model.safetensors", "np") as file:
        places = dict.fromkeys(file.keys(), "model.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert [path.name for path in read_checkpoint(checkpoint).weights] == ["model.safetensors"]


def test_an_index_without_places_is_damaged(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{}")
    assert refusal(sharded).code == "checkpoint_damaged"


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
        found = read_checkpoint(checkpoint)
        return (
            found.hash_weights(lambda done, total: None),
            found.hash_tokenizer(),
            found.hash_chat_template(),
        )

    before = hashes()
    change(checkpoint)
    assert tuple(old != new for old, new in zip(before, hashes(), strict=True)) == expected


def test_hashing_says_how_far_it_is(checkpoint: Path) -> None:
    heard: list[tuple[int, int]] = []
    found = read_checkpoint(checkpoint)
    found.hash_weights(lambda done, total: heard.append((done, total)))
    assert heard[-1] == (found.weight_bytes, found.weight_bytes)


def test_a_config_that_is_nested_beyond_reading(checkpoint: Path, tmp_path: Path) -> None:
    directory = tmp_path / "nested"
    shutil.copytree(checkpoint, directory)
    (directory / "config.json").write_text("[" * 100_000)
    refused = refusal(directory)
    assert refused.code == "checkpoint_damaged"
    assert "config.json is not valid JSON" in str(refused)
