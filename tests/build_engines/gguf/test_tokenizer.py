from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from transformers import PreTrainedTokenizerFast

from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer
from build_engines.gguf.header import read_gguf
from build_engines.gguf.tokenizer import write_tokenizer
from tests.build_engines.gguf.gguf_files import write_vocabulary

# Texts and their ids, which llama.cpp 0.3.36 of PyPI (llama-cpp-python) computed from the same file.
_GOLDEN = Path(__file__).with_name("smollm2_ids.json")
_WORDS = ["\u2581", "a", "b", "ab", "\u2581ab", "\u2581a", "  "]
_BYTES = [f"<0x{number:02X}>" for number in range(256)]
_FIRST_BYTE = 3


def made(file: Path, out: Path) -> PreTrainedTokenizerFast:
    write_tokenizer(read_gguf(file), out)
    tokenizer: PreTrainedTokenizerFast = read_fast_tokenizer(out)
    return tokenizer


def test_ids_and_texts_are_those_of_llama_cpp(smollm2: Callable[[], Path], tmp_path: Path) -> None:
    tokenizer = made(smollm2(), tmp_path)
    for text, ids in json.loads(_GOLDEN.read_text()):
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("prefix", "text", "words"),
    [
        (True, "ab", ["<s>", "\u2581ab"]),
        (True, "ab ab", ["<s>", "\u2581ab", "\u2581ab"]),
        (True, "\xe9", ["<s>", "\u2581", "<0xC3>", "<0xA9>"]),
        (True, "b</s>ab", ["<s>", "\u2581", "b", "</s>", "\u2581ab"]),
        (False, "ab ab", ["<s>", "ab", "\u2581ab"]),
        (False, "a  b", ["<s>", "a", "  ", "b"]),
    ],
)
def test_a_sentencepiece_vocabulary_joins_the_best_pairs(
    tmp_path: Path, prefix: bool, text: str, words: list[str]
) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", *_BYTES, *_WORDS])
        writer.add_token_scores([-float(number) for number in range(_FIRST_BYTE + 256 + len(_WORDS))])
        # Unknown, control, bytes, usual, and one that the user defined.
        writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(_WORDS) - 1), 4])
        writer.add_add_space_prefix(prefix)

    tokenizer = made(write_vocabulary(tmp_path / "model.gguf", add), tmp_path)
    ids = tokenizer.encode(text)
    assert tokenizer.convert_ids_to_tokens(ids) == words
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.replace("</s>", " " if prefix else "")


def test_the_end_of_a_turn_is_special_whatever_the_file_says(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "ab", "<|im_end|>"])
        writer.add_token_types([1, 1, 1, 1])
        writer.add_token_merges(["a b"])

    tokenizer = made(write_vocabulary(tmp_path / "model.gguf", add), tmp_path)
    assert tokenizer.encode("ab<|im_end|>a") == [2, 3, 0]
    assert tokenizer.decode([2, 3], skip_special_tokens=True) == "ab"


def test_all_chat_templates_are_kept(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["<s>", "a", "b", "ab"])
        writer.add_token_merges(["a b"])
        writer.add_chat_template([{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}])

    tokenizer = made(write_vocabulary(tmp_path / "model.gguf", add), tmp_path)
    assert tokenizer.chat_template == {"default": "one", "tool_use": "two"}
