"""Converts the tokens of one answer to text that continues its prompt, as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inflight.text.detokenizer import CONTEXT_TOKENS, PROMPT_CONTEXT_TOKENS, Chunk, Detokenizer


class TextStream:
    """See inflight_client's TokenText, which this implements."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        prompt_ids: Sequence[int],
        word_ids: Mapping[str, list[int]],
        end_ids: Sequence[int] = (),
    ) -> None:
        """`word_ids` are the token ids of the call's stop words and bad words."""
        self._detokenizer, self._word_ids = detokenizer, word_ids
        self.end_ids = end_ids
        self._context: list[int] = []
        self._add_context(prompt_ids[-PROMPT_CONTEXT_TOKENS:])

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each stop word or bad word."""
        return [self._word_ids[word] for word in words]

    def decode(self, token_ids: Sequence[int], ended: bool, dropped: int) -> str:
        """Return the text of the answer's next tokens; with `ended` they are the last ones, and no call may follow.

        `dropped` characters at the end of their text belong to a stop word that the engine found.
        """
        (text,) = self._detokenizer.texts([Chunk(token_ids, self._context, final=ended)])
        self._add_context(token_ids)
        return text[: len(text) - dropped] if dropped else text

    def _add_context(self, token_ids: Sequence[int]) -> None:
        text_ids = [token_id for token_id in token_ids if token_id not in self._detokenizer.special_token_ids]
        self._context = [*self._context, *text_ids][-CONTEXT_TOKENS:]
