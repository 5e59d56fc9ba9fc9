"""What a model.bin says of itself, and the files that are none."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from build_engines.checkpoints.checkpoint import read_checkpoint
from build_engines.checkpoints.ctranslate2_model import read_ctranslate2
from build_engines.errors import BuildError
from tests.fixtures.errors import raises

FLOAT32, INT8, INT16, FLOAT16 = 0, 1, 2, 4
SIZES = {FLOAT32: 4, INT8: 1, INT16: 2, FLOAT16: 2}


def string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def model_file(spec: str = "WhisperSpec", kind: int = FLOAT32, version: int = 6) -> bytes:
    """A layer of 2 x 3 weights of this kind, and an alias of it."""
    weight = string("layer/weight") + struct.pack("<B2IBI", 2, 2, 3, kind, 6 * SIZES[kind]) + bytes(6 * SIZES[kind])
    bias = string("layer/bias") + struct.pack("<BIBI", 1, 3, FLOAT32, 12) + bytes(12)
    head = struct.pack("<I", version) + string(spec) + struct.pack("<II", 3, 2)
    return head + weight + bias + struct.pack("<I", 1) + string("tied/weight") + string("layer/weight")


def written(directory: Path, content: bytes) -> Path:
    (directory / "model.bin").write_bytes(content)
    (directory / "config.json").write_text("{}")
    (directory / "vocabulary.json").write_text(json.dumps(["a"]))
    return directory


@pytest.mark.parametrize(("kind", "precision"), [(FLOAT32, "fp32"), (FLOAT16, "fp32"), (INT8, "int8")])
def test_the_variables_of_a_model(kind: int, precision: str, tmp_path: Path) -> None:
    facts = read_ctranslate2(written(tmp_path, model_file(kind=kind)))
    assert facts.precision == precision
    assert [facts.size("tied/weight", axis) for axis in (0, 1)] == [2, 3]
    with raises(BuildError, "checkpoint_damaged", naming="decoder/weight"):
        facts.size("decoder/weight", 0)
    checkpoint = read_checkpoint(tmp_path, check=lambda directory, config: None)
    assert checkpoint.architecture == "WhisperForConditionalGeneration"
    assert checkpoint.weights == (tmp_path / "model.bin",)


def test_every_cut_is_found(tmp_path: Path) -> None:
    whole = model_file()
    for length in range(len(whole)):
        with raises(BuildError, "checkpoint_damaged", naming="model.bin"):
            read_ctranslate2(written(tmp_path, whole[:length]))
    with raises(BuildError, "checkpoint_damaged", naming="model.bin"):
        read_ctranslate2(written(tmp_path, whole + b"\0"))


def test_every_changed_byte_is_read_or_refused(tmp_path: Path) -> None:
    whole = model_file()
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 0xFF
        with suppress(BuildError):  # and no other error
            read_ctranslate2(written(tmp_path, bytes(content)))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (model_file(version=7), "checkpoint_damaged"),
        (model_file("TransformerDecoderModelSpec"), "unsupported_architecture"),
    ],
)
def test_other_models_are_refused(content: bytes, code: str, tmp_path: Path) -> None:
    with raises(BuildError, code, naming="model.bin"):
        read_checkpoint(written(tmp_path, content), check=lambda directory, config: None)


def test_weights_in_16_bit_integers_are_refused(tmp_path: Path) -> None:
    with raises(BuildError, "unsupported_architecture", naming="int16"):
        read_ctranslate2(written(tmp_path, model_file(kind=INT16))).precision  # noqa: B018
