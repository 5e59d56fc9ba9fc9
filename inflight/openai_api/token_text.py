"""The bytes and the text of single tokens, for log probabilities."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"


class TokenLogprob(NamedTuple):
    """A chosen token: its text, its bytes if they are known, its log probability, and whether answers show it."""

    text: str
    bytes: list[int] | None
    logprob: float
    shown: bool = True


class TextOffsets:
    """Finds where the tokens of an answer begin in its text: several tokens may make one character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0
        self._begun = False

    def take(self, tokens: Sequence[TokenLogprob], text: str) -> list[int] | None:
        """Return the offsets of the next tokens, with which the answer's `text` goes on; None if bytes are unknown."""
        offsets = []
        for each in tokens:
            if each.bytes is None:
                return None
            offsets.append(self._at)
            decoded = self._decoder.decode(bytes(each.bytes)) if each.shown else ""
            if decoded and not self._begun:
                self._begun = True
                # SentencePiece's first space is not in the text.
                decoded = decoded[1:] if decoded[0] == " " and not text.startswith(" ") else decoded
            self._at += len(decoded)
        return offsets


class Vocabulary(Protocol):
    """The part of `tokenizers.Tokenizer` that is used here."""

    def id_to_token(self, id: int) -> str | None: ...
    def to_str(self, pretty: bool = False) -> str: ...


class TokenTexts:
    """Texts of tokens by id. Byte-level tokens spell each byte as a character, others mark spaces with `▁`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        described = json.loads(vocabulary.to_str())
        self._byte_level = '"ByteLevel"' in json.dumps(described.get("decoder"))
        added = described.get("added_tokens", [])
        self._added = {each["id"]: each["content"] for each in added}
        self._special = {each["id"] for each in added if each.get("special")}
        self._known: dict[int, tuple[str, list[int] | None]] = {}

    def logprobs(self, ids: Sequence[int], values: Sequence[float]) -> list[TokenLogprob]:
        return [
            TokenLogprob(*self._text(each), value, each not in self._special)
            for each, value in zip(ids, values, strict=True)
        ]

    def _text(self, token_id: int) -> tuple[str, list[int] | None]:
        if (known := self._known.get(token_id)) is None:
            raw = self._bytes(token_id)
            known = (f"token_id:{token_id}", None) if raw is None else (raw.decode(errors="replace"), list(raw))
            self._known[token_id] = known
        return known

    def _bytes(self, token_id: int) -> bytes | None:
        if token_id in self._added:
            content = str(self._added[token_id])
            return (content.replace(_SPACE, " ") if set(content) == {_SPACE} else content).encode()
        token = self._vocabulary.id_to_token(token_id)
        if token is None:
            return None
        if self._byte_level:
            table = _byte_of_character()
            return bytes(table[each] for each in token) if all(each in table for each in token) else token.encode()
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(_SPACE, " ").encode()


def unknown_logprobs(ids: Sequence[int] | None, values: Sequence[float]) -> list[TokenLogprob]:
    """Return log probabilities without a tokenizer: tokens are written `token_id:123`, as vLLM can."""
    names = [""] * len(values) if ids is None or len(ids) != len(values) else [f"token_id:{each}" for each in ids]
    return [TokenLogprob(name, None, value) for name, value in zip(names, values, strict=True)]


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte of each character of GPT-2's byte-level alphabet, which has no control characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
