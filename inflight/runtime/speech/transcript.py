"""Makes segments and words of what a Whisper model decoded, and decides whether it is to be decoded again."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tokenizers import Tokenizer

from inflight.runtime.encoders.batch_runner import Requeue
from inflight.runtime.speech.clip import (
    DETECTED,
    SAMPLE_RATE,
    SAMPLES_PER_POSITION,
    Clip,
    Decoded,
    SpecialTokens,
)

# The thresholds of OpenAI's code and of faster-whisper.
_MAX_COMPRESSION = 2.4
"""A text that compresses better repeats itself."""
_MIN_LOG_PROBABILITY = -1.0
_MAX_NO_SPEECH = 0.6
_STEP = SAMPLES_PER_POSITION / SAMPLE_RATE
_PRECISION = 3
_UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}
"""Languages that have no spaces between words."""
_MAX_MEDIAN = 0.7
"""Seconds that words of a clip usually last, at most."""
_SENTENCE_ENDS = (".", "\u3002", "!", "\uff01", "?", "\uff1f")
_MIN_SECONDS = 0.2
"""Of a rest that is decoded, and of what is before it, which bounds the number of rests."""


@dataclass(frozen=True)
class Transcript:
    """What was said in a clip: its text, the code of its language, and its segments by OpenAI's names."""

    text: str
    language: str
    segments: tuple[Mapping[str, Any], ...]


class TranscriptMaker:
    """Makes transcripts with the tokenizer of one model."""

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._codes = {token: code for code, token in tokens.languages.items()}

    def make(self, clip: Clip, decoded: Decoded) -> Transcript | Requeue:
        """Return the transcript, or what is to be decoded next: the clip at its next temperature if the result is poor
        and there is one, or the rest of the clip if the model did not come to its end."""
        tried = (*clip.tried, decoded)
        if self._is_poor(decoded):
            if clip.further:
                return Requeue(_at(clip, clip.further, tried=tried))
            usable = [each for each in tried if self._compression(each) <= _MAX_COMPRESSION]
            decoded = max(usable or tried, key=lambda each: each.log_probability)
        silent = decoded.no_speech_probability > _MAX_NO_SPEECH and decoded.log_probability <= _MIN_LOG_PROBABILITY
        language = self._language(clip, decoded)
        count, step = (0, None) if silent else self._finished(clip, decoded.tokens)
        segments = *clip.earlier, *self._segments(clip, decoded, count, language)
        if step is None:
            return Transcript("".join(segment["text"] for segment in segments).strip(), language, segments)
        prompt = tuple(token if token != DETECTED else decoded.language or token for token in clip.prompt)
        rest = replace(clip, samples=clip.samples[step * SAMPLES_PER_POSITION :], start=clip.start + step * _STEP)
        temperatures = *(each.temperature for each in tried), *clip.further
        return Requeue(_at(replace(rest, prompt=prompt, earlier=segments), temperatures, tried=()))

    def _is_poor(self, decoded: Decoded) -> bool:
        unsure = decoded.log_probability < _MIN_LOG_PROBABILITY
        if unsure and decoded.no_speech_probability > _MAX_NO_SPEECH:
            return False  # silence
        return unsure or self._compression(decoded) > _MAX_COMPRESSION

    def _compression(self, decoded: Decoded) -> float:
        text = self._text(decoded.tokens).strip().encode()
        return len(text) / len(zlib.compress(text))

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode([token for token in tokens if token < self._tokens.end]))

    def _language(self, clip: Clip, decoded: Decoded) -> str:
        if decoded.language is not None:
            return self._codes[decoded.language]
        return next((self._codes[token] for token in clip.prompt[-3:] if token in self._codes), "en")

    def _finished(self, clip: Clip, tokens: Sequence[int]) -> tuple[int, int | None]:
        """Return how many tokens are of segments that the model finished, and the step at which it began one that it
        did not finish, so that the rest of the clip is to be decoded from there; None: it came to the clip's end.

        As in OpenAI's code: a segment lies between two timestamps, and a single one at the end says that no speech
        follows.
        """
        stamps = [token >= self._tokens.first_timestamp for token in tokens]
        pairs = [place for place in range(1, len(tokens)) if stamps[place - 1] and stamps[place]]
        if pairs and stamps[-2:] != [False, True]:
            step = tokens[pairs[-1] - 1] - self._tokens.first_timestamp
            if min(step * _STEP, clip.seconds - step * _STEP) >= _MIN_SECONDS:
                return pairs[-1], step
        return len(tokens), None

    def _segments(self, clip: Clip, decoded: Decoded, count: int, language: str) -> Iterator[dict[str, Any]]:
        """Yield a segment for each pair of timestamps in the first `count` tokens; what is behind the last one lasts
        until the clip's end."""
        parts, first = [], 0
        for start, end, tokens in self._spans(decoded.tokens[:count]):
            words = self._words(tokens, decoded, first, language, clip.start) if decoded.times else []
            first += sum(token < self._tokens.end for token in tokens)
            parts.append((start, end, tokens, words))
        longest = _longest_word(word for *_, words in parts for word in words)
        for start, end, tokens, words in parts:
            text = self._text(tokens)
            if not text.strip():
                continue
            begins = min(start * _STEP, clip.seconds)
            ends = max(begins, clip.seconds if end is None else min(end * _STEP, clip.seconds))
            begins, ends = round(clip.start + begins, _PRECISION), round(clip.start + ends, _PRECISION)
            if words:  # the time of the last one lasts until the next segment's first
                words[-1]["end"] = max(words[-1]["start"], min(words[-1]["end"], ends))
                _leave_out_pauses(words, longest)
                begins = max(begins, min(words[0]["start"], ends))
            segment = {
                "start": begins,
                "end": ends,
                "text": text,
                "tokens": list(tokens),
                "temperature": decoded.temperature,
                "avg_logprob": decoded.log_probability,
                "compression_ratio": self._compression(decoded),
                "no_speech_prob": decoded.no_speech_probability,
            }
            yield {**segment, "words": words} if decoded.times else segment

    def _spans(self, tokens: Sequence[int]) -> Iterator[tuple[int, int | None, tuple[int, ...]]]:
        """Yield the steps at which each segment starts and ends (None: the clip's end), and its tokens."""
        first = self._tokens.first_timestamp
        start, begun = 0, 0
        for place, token in enumerate(tokens):
            if token < first:
                continue
            if place > begun:
                yield start, token - first, tuple(tokens[begun : place + 1])
                begun = place + 1
            start = token - first
        if begun < len(tokens):
            yield start, None, tuple(tokens[begun:])

    def _words(
        self, tokens: Sequence[int], decoded: Decoded, first: int, language: str, start: float
    ) -> list[dict[str, Any]]:
        """Return the words of a segment whose first token of text has the index `first`, in a clip from `start` s."""
        text = [token for token in tokens if token < self._tokens.end]
        words, begun = [], 0
        for index in range(1, len(text) + 1):
            if index < len(text) and not self._begins_word(text[begun:index], text[index:], language):
                continue
            probabilities = decoded.probabilities[first + begun : first + index]
            words.append(
                {
                    "word": self._text(text[begun:index]),
                    "start": round(start + decoded.times[first + begun], _PRECISION),
                    "end": round(start + decoded.times[first + index], _PRECISION),
                    "probability": round(sum(probabilities) / len(probabilities), _PRECISION),
                }
            )
            begun = index
        return words

    def _begins_word(self, before: Sequence[int], after: Sequence[int], language: str) -> bool:
        """Return whether a word ends between tokens: at a space, or in some languages after each whole character."""
        if language in _UNSPACED:
            return "\ufffd" not in self._text(before)
        return self._text(after[:1]).startswith(" ")


def _longest_word(words: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds from which on a word's times have a pause in them: twice the median of its clip."""
    seconds: list[float] = [word["end"] - word["start"] for word in words if word["end"] > word["start"]]
    return 2 * min(_MAX_MEDIAN, median(seconds or [0.0]))


def _leave_out_pauses(words: list[dict[str, Any]], longest: float) -> None:
    """Shorten words at the borders of a segment's sentences, where pauses are, as in OpenAI's code."""
    for place, word in enumerate(words):
        if word["end"] - word["start"] <= longest:
            continue
        if not place or words[place - 1]["word"].endswith(_SENTENCE_ENDS):
            word["start"] = round(word["end"] - longest, _PRECISION)
        elif word["word"].endswith(_SENTENCE_ENDS):
            word["end"] = round(word["start"] + longest, _PRECISION)


def _at(clip: Clip, temperatures: Sequence[float], tried: tuple[Decoded, ...]) -> Clip:
    """Return a clip that is decoded at the first temperature, and if need be at the further ones."""
    decoding = replace(clip.decoding, temperature=temperatures[0])
    return replace(clip, decoding=decoding, further=tuple(temperatures[1:]), tried=tried)
