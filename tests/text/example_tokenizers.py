"""Small tokenizers of each kind, and what they make of texts."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from inflight.text.detokenizer import Detokenizer

SPECIAL = "<|end|>"
ADDED = "<tool>"
FRAGMENTS = [
    *("the tea", " tin", "  two  spaces", " ", "\n", "\n\n  - item", "café crème", "cafe\u0301", "a\tb"),
    *("中文字", "日本語のお茶", "한국어", "😀", "👩‍👩‍👧‍👦", "👍🏽", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "ع", "\ufffd"),
]

_SPACES, _FALLBACK = decoders.Replace("▁", " "), [decoders.ByteFallback(), decoders.Fuse()]
BYTE_FALLBACK: dict[str, dict[str, Any]] = {
    # Llama 2, Mistral and Phi-3: a space is put before the text, and the first one is stripped when decoding.
    "llama_2": {
        "normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        "decoder": decoders.Sequence([_SPACES, *_FALLBACK, decoders.Strip(" ", 1, 0)]),
    },
    # Gemma: no space is added or stripped.
    "gemma": {
        "normalizer": normalizers.Replace(" ", "▁"),
        "decoder": decoders.Sequence([_SPACES, *_FALLBACK]),
    },
    # T5 and the first fast Llama tokenizers: the decoder drops the space of the first piece.
    "metaspace": {
        "pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="always", split=True),
        "decoder": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]),
    },
}
"""Kinds that have words of common letters, and byte tokens for the rest."""
KINDS = ["byte_level", *BYTE_FALLBACK]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    tokenizer = _byte_level() if kind == "byte_level" else Tokenizer(_byte_fallback_bpe())
    for name, part in BYTE_FALLBACK.get(kind, {}).items():
        setattr(tokenizer, name, part)
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(ADDED, special=False, normalized=False)])
    return tokenizer


def _byte_level() -> Tokenizer:
    """GPT-2, Qwen and Llama 3: every byte is a piece, and pieces may end in the middle of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(FRAGMENTS * 3, trainer)
    return tokenizer


def _byte_fallback_bpe() -> models.BPE:
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz-.", "é", "中", "😀"]
    merges = [("▁", "▁"), ("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("e", "a"), ("t", "w"), ("tw", "o"), ("中", "中")]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *("".join(merge) for merge in merges)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


@cache
def detokenizer_of(kind: str, skip_special_tokens: bool) -> Detokenizer:
    return Detokenizer(tokenizer_of(kind), skip_special_tokens)


def ids_of(kind: str, text: str) -> list[int]:
    ids: list[int] = tokenizer_of(kind).encode(text, add_special_tokens=False).ids
    return ids


def whole(kind: str, token_ids: list[int], skip: bool = True) -> str:
    return str(tokenizer_of(kind).decode(token_ids, skip_special_tokens=skip))


sizes_of_chunks = st.lists(st.integers(1, 5), min_size=1, max_size=4)

texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=10).map("".join)
