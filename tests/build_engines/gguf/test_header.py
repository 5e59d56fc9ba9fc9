from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.build import BuildOptions, build_engine
from build_engines.errors import BuildError
from build_engines.gguf.families import read_gguf_config
from build_engines.gguf.header import GgufFile, GgufTensor
from tests.build_engines.gguf.gguf_files import CASES, make_model, write_model
from tests.fixtures.errors import raises

Edit = Callable[[bytes], bytes]
_HUGE = (1 << 60).to_bytes(8, "little")
# Magic, version, number of tensors, number of metadata, length of the first key.
_TENSORS, _ENTRIES, _FIRST = 8, 16, 24


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    case = dataclasses.replace(CASES["qwen2"], metadata={"extra": 3, "extrb": 3})
    return write_model(case, make_model(case), tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


def put(place: int, new: bytes) -> Edit:
    return lambda content: content[:place] + new + content[place + len(new) :]


def after(name: bytes, distance: int, new: bytes) -> Edit:
    """Return an edit so many bytes after the end of the first `name`."""

    def edit(content: bytes) -> bytes:
        place = content.index(name) + len(name) + distance
        return put(place, new)(content)

    return edit


def swap(old: bytes, new: bytes) -> Edit:
    def edit(content: bytes) -> bytes:
        assert old in content
        assert len(old) == len(new)
        return content.replace(old, new, 1)

    return edit


LLAMA = {
    "general.architecture": "llama",
    **{f"llama.{key}": 8 for key in ("embedding_length", "feed_forward_length", "block_count", "context_length")},
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS = {"token_embd.weight": GgufTensor((8, 8), 0, 0, 256)}
TENSOR = b"blk.1.attn_k.weight"
KIND = 4 + 2 * 8  # after the name: number of dimensions, two of them, then the kind of numbers and the offset
DAMAGED: dict[str, tuple[Edit, str]] = {
    "empty": (lambda content: b"", "checkpoint_damaged"),
    "short": (lambda content: content[:3], "checkpoint_damaged"),
    "no GGUF": (put(0, b"GGML"), "not_a_checkpoint"),
    "version 1": (put(4, b"\1\0\0\0"), "not_a_checkpoint"),
    "version 99": (put(4, b"\x63\0\0\0"), "not_a_checkpoint"),
    "big-endian": (put(4, b"\0\0\0\3"), "not_a_checkpoint"),
    "header cut off": (lambda content: content[:500], "checkpoint_damaged"),
    "tensors cut off": (lambda content: content[:-1], "checkpoint_damaged"),
    "very many tensors": (put(_TENSORS, _HUGE), "checkpoint_damaged"),
    "very much metadata": (put(_ENTRIES, _HUGE), "checkpoint_damaged"),
    "very long key": (put(_FIRST, _HUGE), "checkpoint_damaged"),
    "very long string": (after(b"general.architecture", 4, _HUGE), "checkpoint_damaged"),
    "very long list": (after(b"tokenizer.ggml.token_type", 8, _HUGE), "checkpoint_damaged"),
    "list of lists": (after(b"tokenizer.ggml.token_type", 4, b"\x09"), "checkpoint_damaged"),
    "unknown type of metadata": (after(b"general.architecture", 0, b"\x63"), "checkpoint_damaged"),
    "metadata twice": (swap(b"qwen2.extrb", b"qwen2.extra"), "checkpoint_damaged"),
    "key is not UTF-8": (swap(b"qwen2.block_count", b"qwen2.\xff\xfe\xff\xfe\xff_count"), "checkpoint_damaged"),
    "tensor outside": (after(TENSOR, KIND + 4, _HUGE), "checkpoint_damaged"),
    "tensor twice": (swap(TENSOR, b"blk.2.attn_k.weight"), "checkpoint_damaged"),
    "tensor of many dimensions": (after(TENSOR, 0, b"\xff\xff"), "checkpoint_damaged"),
    "tensor of a huge shape": (after(TENSOR, 4, _HUGE + _HUGE), "checkpoint_damaged"),
    "tensor of an unknown kind": (after(TENSOR, KIND, b"\x63"), "unsupported_architecture"),
    "tensor of integers": (after(TENSOR, KIND, b"\x1a"), "unsupported_architecture"),
    "unknown tensor": (swap(TENSOR, b"blk.1.attn_x.weight"), "unsupported_architecture"),
    "unknown family": (swap(b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0qwenx"), "unsupported_architecture"),
    "family that is a number": (
        after(b"general.architecture", 0, b"\x04\0\0\0"),
        "checkpoint_damaged",
    ),
    "no layers": (swap(b"qwen2.block_count", b"qwen2.blocks_none"), "checkpoint_damaged"),
    "no heads": (after(b"qwen2.attention.head_count", 4, bytes(4)), "checkpoint_damaged"),
    "a part of a split model": (swap(b"qwen2.extra", b"split.count"), "not_a_checkpoint"),
    "no vocabulary": (swap(b"tokenizer.ggml.tokens", b"tokenizer.ggml.nothin"), "checkpoint_damaged"),
    "unknown tokenizer": (swap(b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0gptx"), "unsupported_architecture"),
    "unknown pre-tokenizer": (swap(b"gpt-2", b"gpt-x"), "unsupported_architecture"),
    "merges of unknown tokens": (swap(b"\x03\0\0\0\0\0\0\0a b", b"\x03\0\0\0\0\0\0\0~ ~"), "checkpoint_damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_or_hostile_file_is_one_sentence_and_leaves_nothing(valid: bytes, tmp_path: Path, name: str) -> None:
    edit, code = DAMAGED[name]
    file = tmp_path / "model.gguf"
    file.write_bytes(edit(valid))
    tracemalloc.start()
    try:
        with raises(BuildError, code, naming="model.gguf") as caught:
            build_engine(str(file), tmp_path / "engine", BuildOptions(precision="int8"))
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "metadata",
    [
        {"attention.key_length": 1 << 40},
        {"block_count": 1 << 40},
        {"attention.head_count_kv": 0},
        {"attention.head_count": 0},
        {"embedding_length": -1},
    ],
    ids=str,
)
def test_sizes_that_no_model_has_are_refused_at_once(tmp_path: Path, metadata: dict[str, int]) -> None:
    file = GgufFile(tmp_path / "m.gguf", LLAMA | {f"llama.{key}": value for key, value in metadata.items()}, TENSORS)
    with raises(BuildError, "checkpoint_damaged"):
        read_gguf_config(file)
