"""Text that comes in pieces or as the whole so far, given out as pieces that are never taken back."""

from __future__ import annotations

from inflight_client.errors import InflightError

_UNFINISHED = "\ufffd"
"""What a tokenizer makes of the first bytes of a character."""
_CLEANED_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What transformers joins to the word before it (`clean_up_tokenization`) once all of it is there."""


class StopTextBuffer:
    """Gives out what is certain, and holds back what may yet change.

    Held back is what may be the beginning of a word of `stops`: the text ends before the first of them that comes up.
    With `whole`, each text that comes is all there is so far, and its end may be put differently by the next one.
    """

    def __init__(self, stops: tuple[str, ...], whole: bool) -> None:
        self.stopped = False
        """Whether one of `stops` came up."""
        self._stops = stops
        self._whole = whole
        self._prefixes = _proper_prefixes(stops + (_CLEANED_UP if whole else ()))
        self._max_prefix = max(map(len, self._prefixes), default=0)
        self._emitted = ""
        self._pending = ""

    def feed(self, text: str) -> str:
        """What is certain with this text. Raises InflightError `answer_damaged` where given text is taken back."""
        if not self._whole:
            return self._emit(self._pending + text)
        if text.startswith(self._emitted):
            return self._emit(text[len(self._emitted) :])
        if self._emitted.startswith(text):  # shorter for now, unless it stays so
            self._pending = ""
            return ""
        raise _retracted_text_error()

    def flush(self, last: str | None) -> str:
        """All that was held back; `last` is the text that came last, None where none came with the end."""
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
        """How many characters at the end may yet change."""
        kept = text.rstrip(_UNFINISHED) if self._whole else text
        for length in range(min(self._max_prefix, len(kept)), 0, -1):
            if kept[-length:] in self._prefixes:
                return len(text) - len(kept) + length
        return len(text) - len(kept)


def _proper_prefixes(words: tuple[str, ...]) -> frozenset[str]:
    """All that the words may begin with and is not the whole word."""
    return frozenset(word[:length] for word in words for length in range(1, len(word)))


def _retracted_text_error() -> InflightError:
    return InflightError(
        "the deployment took back text that it had sent; call generate instead of stream, or send the request again",
        "answer_damaged",
    )
