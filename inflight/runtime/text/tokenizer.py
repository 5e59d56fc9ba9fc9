"""Text to token ids: the checkpoint's own tokenizer, and the checks that text must pass first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from inflight.runtime.messages import RequestError


def load_tokenizer(tokenizer_dir: str) -> Tokenizer:
    """Read `tokenizer.json` of an engine directory; padding and truncation that it may ask for are switched off."""
    tokenizer = Tokenizer.from_file(str(Path(tokenizer_dir) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def checked_text(raw: bytes, name: str) -> str:
    """The text that `raw` encodes; RequestError for what is empty, not UTF-8, or holds a NUL."""
    if not raw:
        raise RequestError(f"{name} is empty; send at least one character", "empty_prompt")
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
    """The most bytes of text that one token stands for; its spelling in the vocabulary is never shorter."""
    return max(len(token.encode()) for token in tokenizer.get_vocab(with_added_tokens=True))


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the highest token id that the tokenizer knows, added tokens included."""
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return max(ids.values()) + 1


def check_size(raw: bytes, name: str, longest_token: int, max_tokens: int) -> None:
    """Refuse what is too long whatever its tokens are: to tokenize megabytes takes seconds, and others would wait."""
    if len(raw) > longest_token * max_tokens:
        raise RequestError(
            f"{name} has {len(raw)} bytes, more than the {max_tokens} tokens of the engine can hold; shorten it",
            "prompt_too_long",
        )


def encode(tokenizer: Tokenizer, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
    """Token ids of each text, with the tokenizer's own special tokens around them where asked for."""
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)]
