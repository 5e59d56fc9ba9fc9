"""Prompts of an exact length in tokens, for tokenizers of several kinds, trained here on the spot."""

import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from loadtests.errors import LoadError
from loadtests.workloads.exact_text import ExactTextGenerator
from loadtests.workloads.text_generator import prompt_text
from tests.fixtures.errors import raises
from tests.loadtests.workloads.tokenizers import tokenizer

KINDS = ["bytes", "bytes and a first token", "sentencepiece", "no words"]


def count(kind: str, text: str) -> int:
    counter = Tokenizer.from_str(tokenizer(kind).to_str())
    counter.no_truncation()
    return len(counter.encode(text).ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_has_exactly_so_many_tokens(kind: str) -> None:
    texts = ExactTextGenerator(tokenizer(kind).to_str().encode(), "it")
    source = random.Random(5)
    wanted = [2, 3, 17, 128, 700]
    assert [count(kind, prompt_text(texts, tokens, source)) for tokens in wanted] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_comes_on_top_and_begins_the_prompt(kind: str) -> None:
    texts = ExactTextGenerator(tokenizer(kind).to_str().encode(), "it")
    source = random.Random(5)
    prefix = texts.piece(40, source, first=True)
    found = [prompt_text(texts, 60, source, prefix, 40) for _ in range(5)]
    assert {count(kind, text) for text in found} == {100}
    assert all(text.startswith(f"{prefix} ") for text in found)
    assert len(set(found)) == 5


def test_a_shorter_piece_begins_the_longer_one() -> None:
    texts = ExactTextGenerator(tokenizer("bytes").to_str().encode(), "it")
    short, long = (texts.piece(tokens, random.Random(3)) for tokens in (5, 50))
    assert long.startswith(f"{short} ")


def test_what_is_no_tokenizer_is_refused() -> None:
    with raises(LoadError, "workload_invalid", naming="tokenizer it"):
        ExactTextGenerator(b"{}", "it")
    bare = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    with raises(LoadError, "workload_invalid", naming=("tokenizer it", "0")):
        ExactTextGenerator(bare.to_str().encode(), "it")
