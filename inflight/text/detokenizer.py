"""Converts token ids to text, incrementally and without state.

The text of a token depends on its neighbours: the space before a word, the other bytes of a character. So each chunk
comes with the tokens before it, and its text is what decoding context and chunk adds to decoding the context alone. An
incomplete character is held back on both sides, so it appears whole, with the chunk that completes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

from tokenizers import Tokenizer

CONTEXT_TOKENS = 8
"""Tokens that an engine sends as context of a chunk: three of an incomplete UTF-8 character, and a few skipped ones.

Tokens that are known to have no text are better left out: a model may repeat its end token any number of times.
"""

PROMPT_CONTEXT_TOKENS = 64
"""Tokens at a prompt's end among which those with text are looked for, as context of the answer's first chunk."""

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Chunk(NamedTuple):
    """New tokens of one sequence, the tokens before them, and whether they are its last."""

    token_ids: Sequence[int]
    context_ids: Sequence[int]
    final: bool


class Detokenizer:
    """Decodes with one tokenizer; stateless and therefore thread-safe."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        special = {id: token.content for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._special = special if skip_special_tokens else {}
        self.special_token_ids = frozenset(self._special)
        """Tokens without text."""
        self._keeping: dict[str, Detokenizer] = {}
        # Tokenizers with byte fallback spell an unknown character as tokens like <0xE4>, and garble a whole run of them
        # if one character of it is incomplete; tokenizers with byte-level pieces have no such tokens.
        self._bytes = {
            token_id: int(match[1], 16)
            for token, token_id in tokenizer.get_vocab(with_added_tokens=False).items()
            if (match := _BYTE_TOKEN.fullmatch(token))
        }
        # Some decoders drop the space before the first word. A context that is not the beginning of the text follows
        # this token, so that neither its first word nor that of a chunk after special tokens comes first.
        self._anchor = tokenizer.encode("a", add_special_tokens=False).ids

    def keeping(self, tags: str) -> Detokenizer:
        """Return a detokenizer that gives those special tokens as text that `tags` contains."""
        skipped = {token_id: text for token_id, text in self._special.items() if text not in tags}
        if len(skipped) == len(self._special):
            return self
        if tags not in self._keeping:
            kept = self._keeping[tags] = copy(self)
            kept.special_token_ids = frozenset(skipped)
        return self._keeping[tags]

    def texts(self, chunks: Sequence[Chunk]) -> list[str]:
        """Return the text that each chunk adds; "" if it completes no character."""
        sequences: list[list[int]] = []
        ends: list[str] = []
        for chunk in chunks:
            context = self._aligned(chunk.context_ids)
            full = [*context, *chunk.token_ids]
            sequences.append(self._complete(context))
            sequences.append(self._complete(full))
            # The bytes of a character that is not whole would garble the whole run before them, which has been sent.
            ends.append(REPLACEMENT if chunk.final and len(sequences[-1]) < len(full) else "")
        # One by one: a batch goes to the library's threads, which takes longer than decoding a few tokens.
        decoded = [self._decode(each) for each in sequences]
        # If a run of byte tokens turns out to be invalid UTF-8, all of it decodes differently. Text that was sent can't
        # be taken back; the text after it by position is sent.
        return [
            (after if chunk.final else _held_back(after))[len(_held_back(before)) :] + end
            for before, after, chunk, end in zip(decoded[::2], decoded[1::2], chunks, ends, strict=True)
        ]

    def _decode(self, token_ids: list[int]) -> str:
        shown = [token_id for token_id in token_ids if token_id not in self.special_token_ids]
        text: str = self._tokenizer.decode(shown, skip_special_tokens=False)
        return text

    def _aligned(self, context_ids: Sequence[int]) -> list[int]:
        """Return the context without the rest of a character whose first bytes it does not hold; see `_anchor`."""
        if len(context_ids) < CONTEXT_TOKENS:
            return list(context_ids)
        start = 0
        while start < len(context_ids) and 0x80 <= self._bytes.get(context_ids[start], 0) < 0xC0:
            start += 1
        return [*self._anchor, *context_ids[start:]]

    def _complete(self, token_ids: list[int]) -> list[int]:
        """Return the tokens without the bytes at the end that begin a character and do not complete it."""
        if not self._bytes:
            return token_ids
        for length in range(1, min(3, len(token_ids)) + 1):
            byte = self._bytes.get(token_ids[-length])
            if byte is None or byte < 0x80:
                break
            if byte >= 0xC0:
                needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                return token_ids[:-length] if length < needed else token_ids
        return token_ids


def _held_back(text: str) -> str:
    """Return the text without a last character that further bytes may change (U+FFFD until then)."""
    return text[:-1] if text.endswith(REPLACEMENT) else text
