"""Small tokenizers of each kind, and what they make of texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from inflight.text.detokenizer import Detokenizer

SPECIAL = "<|end|>"

ADDED = "<tool>"

FRAGMENTS = [
    "the tea",
    " tin",
    "  two  spaces",
    " ",
    "\n",
    "\n\n  - item",
    "café crème",
    "cafe\u0301",
    "中文字",
    "日本語のお茶",
    "한국어",
    "😀",
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "ع",
    "\ufffd",
    "a\tb",
]


def byte_level() -> Tokenizer:
    """GPT-2, Qwen and Llama 3: every byte is a piece, and pieces may end in the middle of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(FRAGMENTS * 3, trainer)
    return with_added_tokens(tokenizer)


def byte_fallback_bpe() -> models.BPE:
    """Words of common letters, and byte tokens for the rest."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz-.", "é", "中", "😀"]
    merges = [("▁", "▁"), ("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("e", "a"), ("t", "w"), ("tw", "o"), ("中", "中")]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *("".join(merge) for merge in merges)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def llama_2() -> Tokenizer:
    """Llama 2, Mistral and Phi-3: a space is put before the text, and the first one is stripped when decoding."""
    tokenizer = Tokenizer(byte_fallback_bpe())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return with_added_tokens(tokenizer)


def gemma() -> Tokenizer:
    """Gemma: byte fallback, and no space is added or stripped."""
    tokenizer = Tokenizer(byte_fallback_bpe())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return with_added_tokens(tokenizer)


def metaspace() -> Tokenizer:
    """T5 and the first fast Llama tokenizers: the decoder drops the space of the first piece."""
    tokenizer = Tokenizer(byte_fallback_bpe())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    return with_added_tokens(tokenizer)


def with_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(ADDED, special=False, normalized=False)])
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    maker.__name__: maker for maker in (byte_level, llama_2, gemma, metaspace)
}

KINDS = list(MAKERS)

BYTE_FALLBACK_KINDS = ["llama_2", "gemma", "metaspace"]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return MAKERS[kind]()


@cache
def detokenizer_of(kind: str, skip_special_tokens: bool) -> Detokenizer:
    return Detokenizer(tokenizer_of(kind), skip_special_tokens)


def whole(kind: str, token_ids: list[int], skip: bool = True) -> str:
    return str(tokenizer_of(kind).decode(token_ids, skip_special_tokens=skip))


sizes_of_chunks = st.lists(st.integers(1, 5), min_size=1, max_size=4)

texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=10).map("".join)
