from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer
from build_engines.errors import BuildError
from tests.fixtures.errors import raises

TEXT = "the quick brown fox tells the lazy dog about tea in the garden of the king and the queen"


def change_settings(directory: Path, **fields: Any) -> None:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def write_slow(directory: Path, model: bytes, **settings: Any) -> None:
    (directory / "tokenizer.model").write_bytes(model)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))


def test_a_class_of_a_newer_transformers_is_read_from_tokenizer_json(checkpoint: Path) -> None:
    ids = read_fast_tokenizer(checkpoint).encode(TEXT)
    change_settings(checkpoint, tokenizer_class="TokenizersBackend")
    assert read_fast_tokenizer(checkpoint).encode(TEXT) == ids
    (checkpoint / "tokenizer.json").unlink()
    with raises(BuildError, "not_a_checkpoint", naming="TokenizersBackend"):
        read_fast_tokenizer(checkpoint)


def test_special_tokens_without_names_are_special(checkpoint: Path) -> None:
    path = checkpoint / "tokenizer.json"
    rules = json.loads(path.read_text())
    number = len(rules["model"]["vocab"]) + len(rules["added_tokens"])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    rules["added_tokens"].append({"id": number, "content": "<|tool|>", "special": True, **flags})
    path.write_text(json.dumps(rules))
    change_settings(checkpoint, extra_special_tokens=["<|tool|>"])
    tokenizer = read_fast_tokenizer(checkpoint)
    assert "<|tool|>" in tokenizer.all_special_tokens
    assert tokenizer.encode("<|tool|>", add_special_tokens=False) == [tokenizer.convert_tokens_to_ids("<|tool|>")]


def test_sentencepiece_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "trained"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 20),
        model_prefix=path,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    slow = sentencepiece.SentencePieceProcessor(f"{path}.model")
    write_slow(
        tmp_path, path.with_suffix(".model").read_bytes(), tokenizer_class="LlamaTokenizer", add_prefix_space=True
    )
    assert read_fast_tokenizer(tmp_path).encode(f"{TEXT} ü", add_special_tokens=False) == slow.encode(f"{TEXT} ü")


def test_tiktoken_is_converted(tmp_path: Path) -> None:
    ranks = [*(bytes([byte]) for byte in range(256)), b"th", b"the"]
    lines = [b"%s %d" % (base64.b64encode(rank), number) for number, rank in enumerate(ranks)]
    write_slow(tmp_path, b"\n".join(lines), tokenizer_class="PreTrainedTokenizerFast")
    assert read_fast_tokenizer(tmp_path).encode("the ü") == [257, 32, *"ü".encode()]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_settings_are_named(checkpoint: Path, content: str) -> None:
    (checkpoint / "tokenizer_config.json").write_text(content)
    with raises(BuildError, "checkpoint_damaged", naming="tokenizer_config.json"):
        read_fast_tokenizer(checkpoint)
