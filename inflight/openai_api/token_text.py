"""The bytes and the text of single tokens, for log probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from inflight_client.results import LogProb

from inflight.common.token_bytes import TokenBytes, Vocabulary

_UNKNOWN = -1


class TokenLogprob(NamedTuple):
    """A token: its text, its bytes if they are known, its log probability, and whether answers show it.

    A chosen one has the `likeliest` tokens at its place, if they were asked for.
    """

    text: str
    bytes: list[int] | None
    logprob: float
    shown: bool = True
    id: int = _UNKNOWN
    likeliest: tuple[TokenLogprob, ...] = ()


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
    """Texts and bytes of tokens by id. Without a vocabulary, tokens are written `token_id:123`, as vLLM can."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._bytes = None if vocabulary is None else TokenBytes(vocabulary)
        self._special = frozenset(self._bytes.special if self._bytes else ())
        self._known: dict[int, tuple[str, list[int] | None]] = {_UNKNOWN: ("", None)}

    def logprobs(self, ids: Sequence[int] | None, values: Sequence[float], most: int = 0) -> list[TokenLogprob]:
        """Return tokens with their log probabilities, and with up to `most` of the likeliest ones at their places."""
        if ids is None or len(ids) != len(values):
            ids = [_UNKNOWN] * len(values)
        return [self._logprob(each, value, most) for each, value in zip(ids, values, strict=True)]

    def _logprob(self, token_id: int, value: float, most: int) -> TokenLogprob:
        top = islice(value.top.items(), most) if isinstance(value, LogProb) else ()
        likeliest = tuple(self._logprob(other, log_prob, 0) for other, log_prob in top)
        return TokenLogprob(*self._text(token_id), value, token_id not in self._special, token_id, likeliest)

    def _text(self, token_id: int) -> tuple[str, list[int] | None]:
        if (entry := self._known.get(token_id)) is None:
            raw = self._bytes.of(token_id) if self._bytes else None
            entry = (f"token_id:{token_id}", None) if raw is None else (raw.decode(errors="replace"), list(raw))
            self._known[token_id] = entry
        return entry


NAMELESS_TOKENS = TokenTexts(None)
