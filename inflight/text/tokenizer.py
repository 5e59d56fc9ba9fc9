"""Converts text to token ids with the checkpoint's tokenizer, and checks the text first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from inflight.common.request_error import RequestError


def load_tokenizer(tokenizer_dir: str) -> Tokenizer:
    """Read `tokenizer.json` of an engine directory; disable its padding and truncation."""
    tokenizer = Tokenizer.from_file(str(Path(tokenizer_dir) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def decoded_text(raw: bytes, name: str) -> str:
    """Decode `raw`. Raises RequestError if it is not UTF-8, or holds a NUL."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name} is not valid UTF-8: byte {error.start} of {len(raw)} can't be decoded; send UTF-8",
            "invalid_text",
        ) from None
    position = text.find("\0")
    if position >= 0:
        raise RequestError(f"{name} holds a NUL at character {position}; remove it", "invalid_text")
    return text


def longest_token_bytes(tokenizer: Tokenizer) -> int:
    """Return the most bytes of text that one token may have; its spelling in the vocabulary is never shorter."""
    return max(len(token.encode()) for token in tokenizer.get_vocab(with_added_tokens=True))


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return one more than the highest token id of the tokenizer, added tokens included."""
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return max(ids.values()) + 1


def check_size(raw: bytes, name: str, longest_token: int, max_tokens: int) -> None:
    """Refuse text that is too long in any tokenization: tokenizing megabytes takes seconds and delays others."""
    if len(raw) > longest_token * max_tokens:
        raise RequestError(
            f"{name} has {len(raw)} bytes, more than the {max_tokens} tokens of the engine can hold; shorten it",
            "prompt_too_long",
        )


def encode(tokenizer: Tokenizer, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
    """Return the token ids of each text, optionally with the tokenizer's own special tokens around them."""
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)]
