"""Results of `transcribe`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, overload

from inflight_client.audio.languages import UNSPACED
from inflight_client.errors import InflightError


@dataclass(frozen=True)
class Word:
    """A word with the space before it, its times in seconds of the audio, and its mean probability."""

    word: str
    start: float
    end: float
    probability: float = 0.0


@dataclass(frozen=True)
class Segment:
    """A few words that belong together, and their times in seconds of the audio.

    `avg_logprob` is the mean log probability of its tokens, `compression_ratio` that of its text (repetitions have
    more than 2.4), `no_speech_prob` the probability that there is no speech. They are the same for all segments of a
    block, and 0 if the server does not send them. `words` is empty unless they were asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Segment:
        """Raises KeyError, TypeError or ValueError for values that are not those of a segment."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        words = tuple(
            Word(**{name: each[name] for name in Word.__dataclass_fields__ if name in each})
            for each in known.pop("words", None) or ()
        )
        tokens = tuple(map(int, known.pop("tokens", ())))
        segment = cls(**known, tokens=tokens, words=words)
        float(segment.start), float(segment.end), segment.text.encode()
        return segment

    def later(self, seconds: float) -> Segment:
        """Return the segment with its times so much later."""

        def later(time: float) -> float:
            return round(time + seconds, 3)

        words = tuple(replace(word, start=later(word.start), end=later(word.end)) for word in self.words)
        return replace(self, start=later(self.start), end=later(self.end), words=words)


@dataclass(frozen=True)
class TranscribedBlock:
    """What was said in the part of an audio from `start` to `end`, in seconds; `language` is "" without speech."""

    index: int
    start: float
    end: float
    language: str = ""
    segments: tuple[Segment, ...] = ()
    model: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TranscribedBlock:
        """Return what `as_dict` returned. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**values, "segments": tuple(map(Segment.from_dict, values["segments"]))})


@dataclass(frozen=True)
class Transcription(Sequence[Segment]):
    """What was said in an audio: a sequence of its segments, with their whole `text`.

    `language` is that of most of its seconds; without speech the one that was asked for, or "". `duration` is in
    seconds.
    """

    text: str
    segments: tuple[Segment, ...]
    language: str
    duration: float
    task: str = "transcribe"
    model: str = ""

    @classmethod
    def join(
        cls, blocks: Iterable[TranscribedBlock], task: str = "transcribe", language: str | None = None
    ) -> Transcription:
        """Return the transcription of an audio whose blocks, in their order, these are; `language` is that of
        silence."""
        blocks = tuple(blocks)
        seconds: dict[str, float] = {}
        for block in blocks:
            if block.language:
                seconds[block.language] = seconds.get(block.language, 0.0) + block.end - block.start
        return cls(
            join_texts(block.text for block in blocks),
            tuple(segment for block in blocks for segment in block.segments),
            max(seconds, key=seconds.__getitem__, default=language or ""),
            blocks[-1].end if blocks else 0.0,
            task,
            next((block.model for block in blocks if block.model), ""),
        )

    def __len__(self) -> int:
        return len(self.segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Segment, ...]: ...
    def __getitem__(self, index: int | slice) -> Segment | tuple[Segment, ...]:
        return self.segments[index]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)


def join_texts(texts: Iterable[str]) -> str:
    """Return texts as one. Segments begin with a space in languages that have spaces."""
    return "".join(texts).strip()


def parse_segments(
    text: str | None, transcript: str, seconds: float, start: float, language: str | None = None
) -> tuple[str, tuple[Segment, ...]]:
    """Return the language and the segments of the output SEGMENTS of a clip, which begins at `start` in the audio.

    Without that output, `transcript` is one segment, which begins with a space where `language` has them. Raises
    InflightError `answer_damaged`.
    """
    if text is None:
        space = "" if language in UNSPACED else " "
        segment = Segment(start, start + seconds, space + transcript.strip())
        return "", (segment,) if segment.text.strip() else ()
    try:
        document = json.loads(text)
        segments = tuple(Segment.from_dict(each).later(start) for each in document["segments"])
        return str(document.get("language") or ""), segments
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InflightError(
            f"the segments of the answer can't be read ({type(error).__name__}); send the audio again", "answer_damaged"
        ) from None
