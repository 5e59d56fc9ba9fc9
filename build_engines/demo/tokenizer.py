"""The demo checkpoint's tokenizer: byte-level BPE, trained on the corpus, with chat markers."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 1024
PAD, END, SYSTEM, USER, ASSISTANT = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
)
PAD_ID, END_ID = SPECIAL_TOKENS.index(PAD), SPECIAL_TOKENS.index(END)

# A turn is its marker, its text and the end token; the model generates the text and end token of its own turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|endoftext|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a byte-level BPE tokenizer of `VOCABULARY_SIZE` entries, which encodes any text.

    The vocabulary is small: frequent words are one token each, so they are easy to copy; rare characters are split
    into bytes, as in the vocabulary of large models.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: tokenizers.Tokenizer, out: pathlib.Path, *, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json (with chat template) and special_tokens_map.json."""
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(out, save_jinja_files=False)


def load_tokenizer(checkpoint: pathlib.Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a checkpoint directory that `save_tokenizer` wrote."""
    return tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
