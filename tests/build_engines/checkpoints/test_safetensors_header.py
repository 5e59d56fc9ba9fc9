from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from build_engines.checkpoints.safetensors_header import check_safetensors
from build_engines.errors import BuildError
from tests.fixtures.errors import raises


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.bfloat16)}, path, {"format": "pt"})
    return path


def test_a_whole_file_gives_its_tensors_with_their_elements(weights: Path) -> None:
    assert check_safetensors(weights) == {"a": 12, "b": 5}


@pytest.mark.parametrize("kept", [-1, -30, 100, 8, 7, 0])
def test_a_truncated_file_is_found_at_any_place(weights: Path, kept: int) -> None:
    weights.write_bytes(weights.read_bytes()[:kept])
    with raises(BuildError, "checkpoint_damaged", naming="model.safetensors"):
        check_safetensors(weights)


def test_bytes_behind_the_last_tensor_are_found(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes() + b"rest")
    with raises(BuildError, "checkpoint_damaged", naming="header"):
        check_safetensors(weights)


@pytest.mark.parametrize(
    "header",
    [
        b"{not json",
        b"[1, 2]",
        b'{"a": {"shape": [1]}}',
        b'{"a": {"shape": [1], "data_offsets": [4, 0]}}',
        b'{"a": 1}',
        b'{"a": {"shape": ["x"], "data_offsets": [0, 4]}}',
        b"\xff\xfe",
        b'{"a":' * 200_000,
        b'{"a": {"shape": [' + b"1," * 64 + b'1], "data_offsets": [0, 4]}}',
        b'{"a": {"shape": [9223372036854775808], "data_offsets": [0, 4]}}',
        b'{"a": {"shape": [-1, -1], "data_offsets": [0, 4]}}',
    ],
)
def test_a_garbled_header_is_one_sentence(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with raises(BuildError, "checkpoint_damaged", naming="header"):
        check_safetensors(path)


def test_a_header_longer_than_the_format_allows_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + json.dumps({}).encode())
    with raises(BuildError, "checkpoint_damaged", naming="header"):
        check_safetensors(path)
