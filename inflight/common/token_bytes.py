"""The bytes of single tokens, as tokenizer.json spells them."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"


class Vocabulary(Protocol):
    """The part of `tokenizers.Tokenizer` that is used here."""

    def id_to_token(self, id: int) -> str | None: ...
    def to_str(self, pretty: bool = False) -> str: ...


class TokenBytes:
    """Byte-level tokens spell each byte as a character, others mark spaces with `▁`. `special`: ids of such tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        described = json.loads(vocabulary.to_str())
        self._byte_level = '"ByteLevel"' in json.dumps(described.get("decoder"))
        added = described.get("added_tokens", [])
        self._added = {each["id"]: each["content"] for each in added}
        self.special = {each["id"] for each in added if each.get("special")}

    def of(self, token_id: int) -> bytes | None:
        """Return the bytes of a token; None for an id without one."""
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


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte of each character of GPT-2's byte-level alphabet, which has no control characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
