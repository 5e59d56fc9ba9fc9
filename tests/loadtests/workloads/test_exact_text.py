"""Prompts of an exact length in tokens, for tokenizers of several kinds, trained here on the spot."""

import random
from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from loadtests.errors import LoadError
from loadtests.workloads.exact_text import ExactTextGenerator
from loadtests.workloads.text_generator import COMMON_WORDS, prompt_text

KINDS = ["bytes", "bytes and a first token", "sentencepiece", "no words"]


@cache
def tokenizer(kind: str) -> Tokenizer:
    """As GPT-2; the same with a token that begins each text; as Llama 2; one for which spaces are letters."""
    made = Tokenizer(models.BPE())
    alphabet: list[str] = []
    if kind.startswith("bytes"):
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "sentencepiece":
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
    source = random.Random(0)
    words = COMMON_WORDS[::4] if kind == "bytes" else COMMON_WORDS
    texts = [" ".join(source.choices(words, k=20)) for _ in range(400)]
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    if kind == "bytes and a first token":
        made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))])
    made.enable_truncation(16)
    return made


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
    with pytest.raises(LoadError, match="the tokenizer it can't be read"):
        ExactTextGenerator(b"{}", "it")
    bare = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    with pytest.raises(LoadError, match="the tokenizer it has only 0 words of one token"):
        ExactTextGenerator(bare.to_str().encode(), "it")
