"""The demo tokenizer takes any text, gives it back, and writes what the chat template promises."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from build_engines.demo.corpus import training_examples
from build_engines.demo.tokenizer import (
    END_ID,
    PAD_ID,
    SPECIAL_TOKENS,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)

TEXTS = [f"{example.prompt} {example.description}" for example in training_examples(count=2000)]
TOKENIZER = train_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(TOKENIZER, out, max_length=4096)
    return out


@given(st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_training_twice_gives_the_same_tokenizer() -> None:
    assert train_tokenizer(TEXTS).to_str() == TOKENIZER.to_str()


def test_some_characters_are_more_than_one_token() -> None:
    split = [character for character in "京都서울台北🪿" if len(TOKENIZER.encode(character).ids) > 1]
    assert split, "streaming would never be tried on an incomplete character"


def test_what_is_saved_loads_in_both_libraries(saved: pathlib.Path) -> None:
    text = "Product: tall 盆栽 scissors | Brand: Łąka Works | Description: 🌱 , and so on ."
    loaded = AutoTokenizer.from_pretrained(saved)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    assert loaded.encode(text) == load_tokenizer(saved).encode(text).ids
    assert loaded.decode(loaded.encode(text)) == text
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.bos_token_id) == (END_ID, PAD_ID, None)
    assert loaded.model_max_length == 4096


def test_the_chat_template_marks_each_turn(saved: pathlib.Path) -> None:
    loaded = AutoTokenizer.from_pretrained(saved)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé"}]
    rendered = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|system|>Be brief.<|endoftext|><|user|>Hé<|endoftext|><|assistant|>"
    ids = loaded.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert [SPECIAL_TOKENS[i] for i in ids if i < len(SPECIAL_TOKENS)] == [
        "<|system|>", "<|endoftext|>", "<|user|>", "<|endoftext|>", "<|assistant|>",
    ]  # fmt: skip


def test_the_vocabulary_has_every_byte() -> None:
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(TOKENIZER.get_vocab())
