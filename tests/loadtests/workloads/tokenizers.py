"""A tokenizer for workloads."""

from __future__ import annotations

import random
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from loadtests.workloads.text_generator import COMMON_WORDS


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
