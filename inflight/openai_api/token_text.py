"""The bytes and the text of single tokens, for log probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from inflight.common.token_bytes import TokenBytes, Vocabulary


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


class TokenTexts:
    """Texts and bytes of tokens by id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._bytes = TokenBytes(vocabulary)
        self._known: dict[int, tuple[str, list[int] | None]] = {}

    def logprobs(self, ids: Sequence[int], values: Sequence[float]) -> list[TokenLogprob]:
        return [
            TokenLogprob(*self._text(each), value, each not in self._bytes.special)
            for each, value in zip(ids, values, strict=True)
        ]

    def _text(self, token_id: int) -> tuple[str, list[int] | None]:
        if (known := self._known.get(token_id)) is None:
            raw = self._bytes.of(token_id)
            known = (f"token_id:{token_id}", None) if raw is None else (raw.decode(errors="replace"), list(raw))
            self._known[token_id] = known
        return known


def unknown_logprobs(ids: Sequence[int] | None, values: Sequence[float]) -> list[TokenLogprob]:
    """Return log probabilities without a tokenizer: tokens are written `token_id:123`, as vLLM can."""
    names = [""] * len(values) if ids is None or len(ids) != len(values) else [f"token_id:{each}" for each in ids]
    return [TokenLogprob(name, None, value) for name, value in zip(names, values, strict=True)]
