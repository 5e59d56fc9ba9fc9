"""Converts the tokens of one answer to text as they come, up to its first stop word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from inflight.runtime.messages import Beam
from inflight.runtime.text.detokenizer import CONTEXT_TOKENS, Chunk, Detokenizer
from inflight.runtime.text.stop_words import Released, StopWords


class TextDelta(NamedTuple):
    """Text that may be sent now, and its tokens, with their log probabilities if present.

    `stopped` says that the answer ends here, before a stop word.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    stopped: bool = False


class TextDecoder(Protocol):
    """Converts tokens to text."""

    def feed(
        self, token_ids: Sequence[int], log_probs: Sequence[float] = (), ended: bool = False, dropped: int = 0
    ) -> TextDelta:
        """Take the answer's next tokens; with `ended` they are the last ones, and no call may follow.

        `dropped` characters at the end of their text belong to a stop word that the engine found.
        """


class TextStream:
    """Returns the text that each call's tokens add, or with `accumulate` the whole text so far."""

    def __init__(self, detokenizer: Detokenizer, stop_words: StopWords | None, accumulate: bool = False) -> None:
        self._detokenizer = detokenizer
        self._stop_words = stop_words
        self._accumulate = accumulate
        self._context: list[int] = []
        self._text_so_far = ""

    def feed(
        self, token_ids: Sequence[int], log_probs: Sequence[float] = (), ended: bool = False, dropped: int = 0
    ) -> TextDelta:
        passed = _release(self._stop_words, token_ids, log_probs, ended, dropped)
        (text,) = self._detokenizer.texts([Chunk(passed.token_ids, self._context, final=ended or passed.found)])
        text = _without_end(text, passed.dropped_characters)
        said = [token_id for token_id in passed.token_ids if token_id not in self._detokenizer.special_token_ids]
        self._context = [*self._context, *said][-CONTEXT_TOKENS:]
        if self._accumulate:
            self._text_so_far = text = self._text_so_far + text
        return TextDelta(text, passed.token_ids, passed.log_probs, passed.found)


class BufferedText:
    """Returns nothing until the end, then the whole answer after `prompt_ids`, decoded at once."""

    def __init__(self, detokenizer: Detokenizer, stop_words: StopWords | None, prompt_ids: Sequence[int] = ()) -> None:
        self._detokenizer = detokenizer
        self._stop_words = stop_words
        self._prompt_ids = prompt_ids
        self._token_ids: list[int] = []
        self._log_probs: list[float] = []

    def feed(
        self, token_ids: Sequence[int], log_probs: Sequence[float] = (), ended: bool = False, dropped: int = 0
    ) -> TextDelta:
        passed = _release(self._stop_words, token_ids, log_probs, ended, dropped)
        self._token_ids += passed.token_ids
        self._log_probs += passed.log_probs
        if not (ended or passed.found):
            return TextDelta("")
        (text,) = self._detokenizer.texts([Chunk([*self._prompt_ids, *self._token_ids], (), final=True)])
        text = _without_end(text, passed.dropped_characters)
        return TextDelta(text, tuple(self._token_ids), tuple(self._log_probs), passed.found)


class TextDecoderFactory(NamedTuple):
    """Creates the text decoders of a prompt's answers; `stop_words` creates a search for each, or is None."""

    detokenizer: Detokenizer
    stop_words: Callable[[], StopWords | None]
    streaming: bool
    accumulate: bool
    prompt_ids: Sequence[int]
    """The tokens before an answer; empty if the answer excludes its prompt."""

    def create(self) -> TextDecoder:
        if self.streaming:
            return TextStream(self.detokenizer, self.stop_words(), self.accumulate)
        return BufferedText(self.detokenizer, self.stop_words(), self.prompt_ids)

    def decode_beam(self, beam: Beam) -> tuple[str, Beam]:
        """Return a complete beam's text and tokens, both cut at its first stop word."""
        stop_words = self.stop_words()
        cut = beam if stop_words is None else stop_words.cut_beam(beam)
        before = () if self.streaming else self.prompt_ids
        (text,) = self.detokenizer.texts([Chunk([*before, *cut.token_ids], (), final=True)])
        return text, cut


def _release(
    stop_words: StopWords | None, token_ids: Sequence[int], log_probs: Sequence[float], ended: bool, dropped: int
) -> Released:
    if stop_words is None:
        return Released(tuple(token_ids), tuple(log_probs), dropped_characters=dropped)
    return stop_words.feed(token_ids, log_probs, ended)


def _without_end(text: str, characters: int) -> str:
    return text[: len(text) - characters] if characters else text
