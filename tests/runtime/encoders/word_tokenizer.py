"""A tokenizer of whole words with a template of special tokens for texts and pairs, as BERT has it."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers, processors

POISON = "poison"
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{number}" for number in range(200)), POISON]


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, VOCABULARY.index(word)) for word in ("[CLS]", "[SEP]")],
    )
    return tokenizer
