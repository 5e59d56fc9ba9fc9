"""Which text is taken, and how it becomes token ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from inflight.common.request_error import RequestError
from inflight.text.tokenizer import (
    check_size,
    decoded_text,
    encode,
    load_tokenizer,
    longest_token_bytes,
    vocabulary_size,
)
from tests.fixtures.errors import raises


@pytest.mark.parametrize("text", ["tea", " ", "\n", "日本語のお茶", "👩‍👩‍👧‍👦", "cafe\u0301", "\ufffd", "\x01"])
def test_text_comes_back_as_it_was(text: str) -> None:
    assert decoded_text(text.encode(), "text_input") == text


REFUSED: list[tuple[bytes, str, tuple[str, ...]]] = [
    (b"tea \xff tin", "invalid_text", ("byte 4 of 9",)),
    ("tea 茶".encode()[:-1], "invalid_text", ("byte 4 of 6",)),
    (b"\xed\xa0\x80", "invalid_text", ("byte 0 of 3",)),
    ("茶\0tea".encode(), "invalid_text", ("character 1",)),
]


@pytest.mark.parametrize(("raw", "code", "named"), REFUSED)
def test_what_is_no_text_is_refused_in_one_sentence(raw: bytes, code: str, named: tuple[str, ...]) -> None:
    with raises(RequestError, code, naming=("text_input", *named)):
        decoded_text(raw, "text_input")


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> str:
    """A tokenizer file that asks for padding, truncation and a token before the text."""
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "<pad>": 1, "the": 2, "tea": 3, "<unk>": 4}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(max_length=3)
    tokenizer.enable_padding(length=3, pad_id=1, pad_token="<pad>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path)


def test_padding_and_truncation_of_the_file_are_switched_off(tokenizer_dir: str) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    assert encode(tokenizer, ["the", "the tea the tea"], add_special_tokens=True) == [[0, 2], [0, 2, 3, 2, 3]]
    assert encode(tokenizer, ["the", "the tea the tea"], add_special_tokens=False) == [[2], [2, 3, 2, 3]]


def test_what_can_not_fit_is_refused_before_it_is_tokenized() -> None:
    longest = longest_token_bytes(Tokenizer(models.WordLevel({"a": 0, "tea茶": 1}, unk_token="a")))
    assert longest == 6
    check_size(b"x" * 60, "text_input", longest, 10)
    with raises(RequestError, "prompt_too_long", naming=("text_input", "61", "10")):
        check_size(b"x" * 61, "text_input", longest, 10)


def test_added_tokens_are_of_the_vocabulary() -> None:
    tokenizer = Tokenizer(models.WordLevel({"tea": 0, "tin": 1}, unk_token="tea"))
    assert vocabulary_size(tokenizer) == 2
    tokenizer.add_tokens(["top", "tip"])
    assert vocabulary_size(tokenizer) == 4
