"""Converts the tokens of one answer to text as they come, up to its first stop word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.text.detokenizer import CONTEXT_TOKENS, PROMPT_CONTEXT_TOKENS, Chunk, Detokenizer
from inflight.text.stop_words import Released, StopWords


class TextDelta(NamedTuple):
    """Text that may be sent now, and its tokens, with their log probabilities if present.

    `stopped` says that the answer ends here, before a stop word.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    stopped: bool = False


class TextStream:
    """Returns the text that each call's tokens add to the text of the prompt."""

    def __init__(
        self, detokenizer: Detokenizer, prompt_ids: Sequence[int] = (), stop_words: StopWords | None = None
    ) -> None:
        self._detokenizer = detokenizer
        self._stop_words = stop_words
        self._context: list[int] = []
        self._add_context(prompt_ids[-PROMPT_CONTEXT_TOKENS:])

    def feed(
        self, token_ids: Sequence[int], log_probs: Sequence[float] = (), ended: bool = False, dropped: int = 0
    ) -> TextDelta:
        """Take the answer's next tokens; with `ended` they are the last ones, and no call may follow.

        `dropped` characters at the end of their text belong to a stop word that the engine found.
        """
        if self._stop_words is None:
            passed = Released(tuple(token_ids), tuple(log_probs), dropped_characters=dropped)
        else:
            passed = self._stop_words.feed(token_ids, log_probs, ended)
        (text,) = self._detokenizer.texts([Chunk(passed.token_ids, self._context, final=ended or passed.found)])
        if passed.dropped_characters:
            text = text[: len(text) - passed.dropped_characters]
        self._add_context(passed.token_ids)
        return TextDelta(text, passed.token_ids, passed.log_probs, passed.found)

    def _add_context(self, token_ids: Sequence[int]) -> None:
        said = [token_id for token_id in token_ids if token_id not in self._detokenizer.special_token_ids]
        self._context = [*self._context, *said][-CONTEXT_TOKENS:]
