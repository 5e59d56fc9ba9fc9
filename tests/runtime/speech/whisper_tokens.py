"""A tokenizer with Whisper's special tokens, and a letter or a dot for each further token."""

from __future__ import annotations

import string

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|notimestamps|>"),
)
WORDS = tuple(string.ascii_lowercase)
DOT = len(WORDS)


def word_tokenizer() -> Tokenizer:
    """Encodes " a b", and gives each of SPECIAL an id behind them; timestamps follow."""
    spelt = {f"\u0120{word}": number for number, word in enumerate(WORDS)} | {".": DOT}
    tokenizer = Tokenizer(models.WordLevel(spelt, unk_token="\u0120a"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer
