"""Turns streamed text, in pieces or accumulated, into deltas that are never retracted."""

from __future__ import annotations

from inflight_client.errors import InflightError

_UNFINISHED = "\ufffd"
"""What a tokenizer decodes from an incomplete character."""
_CLEANED_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""Texts whose leading space transformers removes (`clean_up_tokenization`) once they are complete."""


class StopTextBuffer:
    """Emits text that is final and holds back text that may still change.

    It holds back a possible beginning of a stop word: the text ends before the first occurrence of one of `stops`.
    With `whole`, each text that arrives is the whole text so far, and the next one may change its end.
    """

    def __init__(self, stops: tuple[str, ...], whole: bool) -> None:
        self.stopped = False
        """Whether one of `stops` occurred."""
        self._stops = stops
        self._whole = whole
        self._prefixes = _proper_prefixes(stops + (_CLEANED_UP if whole else ()))
        self._max_prefix = max(map(len, self._prefixes), default=0)
        self._emitted = ""
        self._pending = ""

    def feed(self, text: str) -> str:
        """Return the text that is now final. Raises InflightError `answer_damaged` if emitted text is retracted."""
        if not self._whole:
            return self._emit(self._pending + text)
        if text.startswith(self._emitted):
            return self._emit(text[len(self._emitted) :])
        if self._emitted.startswith(text):  # shorter for now, unless it stays so
            self._pending = ""
            return ""
        raise _retracted_text_error()

    def flush(self, last: str | None) -> str:
        """Return the text held back; `last` is the last response's text, or None."""
        if self.stopped:
            return ""
        if self._whole:
            if last is not None:
                if not last.startswith(self._emitted):
                    raise _retracted_text_error()
                self._pending = last[len(self._emitted) :]
        else:
            self._pending += last or ""
        text, self._pending = self._before_stop(self._pending), ""
        return text

    def _emit(self, text: str) -> str:
        text = self._before_stop(text)
        if self.stopped:
            return text
        certain = len(text) - self._uncertain_length(text)
        self._pending = text[certain:]
        if self._whole:
            self._emitted += text[:certain]
        return text[:certain]

    def _before_stop(self, text: str) -> str:
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        self.stopped = bool(places)
        return text[: min(places)] if places else text

    def _uncertain_length(self, text: str) -> int:
        """Return how many characters at the end may still change."""
        kept = text.rstrip(_UNFINISHED) if self._whole else text
        for length in range(min(self._max_prefix, len(kept)), 0, -1):
            if kept[-length:] in self._prefixes:
                return len(text) - len(kept) + length
        return len(text) - len(kept)


def _proper_prefixes(words: tuple[str, ...]) -> frozenset[str]:
    """Return all proper prefixes of the words."""
    return frozenset(word[:length] for word in words for length in range(1, len(word)))


def _retracted_text_error() -> InflightError:
    return InflightError(
        "the deployment changed text that it had sent; call generate instead of stream, or send the request again",
        "answer_damaged",
    )
