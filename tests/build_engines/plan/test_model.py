from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.plan.model import read_model
from build_engines.plan.parameters import count_parameters
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "checkpoint"))


def shard(checkpoint: Path) -> None:
    """Put half of the weights into a second file, with an index."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensor for name, tensor in tensors.items() if places[name] == file}, checkpoint / file)
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_what_the_files_hold_counts_and_a_difference_is_told(checkpoint: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    whole = read_model(checkpoint).parameters
    path = checkpoint / "model.safetensors"
    save_file(load_file(path) | {"model.layers.0.more.weight": torch.zeros(100_000)}, path)
    model = read_model(checkpoint)
    assert model.parameters.total == whole.total + 100_000
    assert model.parameters.linear == whole.linear + 100_000
    assert f"{whole.total + 100_000:,} parameters and config.json describes {whole.total:,}" in model.notes[0]


def test_files_of_an_index_are_added_up(checkpoint: Path) -> None:
    whole = read_model(checkpoint)
    shard(checkpoint)
    assert read_model(checkpoint) == whole


def test_a_download_that_is_not_whole_is_counted_by_its_config(checkpoint: Path) -> None:
    shard(checkpoint)
    (checkpoint / "model-1.safetensors").unlink()
    model = read_model(checkpoint)
    assert model.counted_from == "config.json"
    assert model.parameters == count_parameters(model.shape)


def test_a_damaged_file_is_one_sentence(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"\0" * 7)
    with raises(BuildError, "checkpoint_damaged", naming="model.safetensors"):
        read_model(checkpoint)


@pytest.mark.parametrize(("name", "words"), [("nowhere", "nowhere"), ("tokenizer.json", "tokenizer.json")])
def test_what_is_no_directory_is_not_found(checkpoint: Path, name: str, words: str) -> None:
    with raises(BuildError, "checkpoint_not_found", naming=words):
        read_model(checkpoint / name)
