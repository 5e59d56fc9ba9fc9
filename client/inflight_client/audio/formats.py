"""Transcriptions as text, subtitles and JSON, as OpenAI's API writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from inflight_client.audio.languages import LANGUAGES
from inflight_client.audio.transcription import Segment, Transcription


def verbose(transcription: Transcription) -> dict[str, Any]:
    """Return `verbose_json`; it has `words` if the transcription has them."""
    segments = []
    for place, segment in enumerate(transcription.segments):
        values = {name: value for name, value in asdict(segment).items() if name != "words"}
        segments.append({"id": place, "seek": round(100 * segment.start), **values, "tokens": list(segment.tokens)})
    body = {
        "task": transcription.task,
        "language": LANGUAGES.get(transcription.language, transcription.language),
        "duration": transcription.duration,
        "text": transcription.text,
        "segments": segments,
    }
    words = [asdict(word) for segment in transcription.segments for word in segment.words]
    return body | {"words": words} if words else body


def _text(transcription: Transcription) -> str:
    return f"{transcription.text}\n"


def _srt(transcription: Transcription) -> str:
    return "".join(
        f"{place}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_line(segment)}\n\n"
        for place, segment in enumerate(transcription.segments, 1)
    )


def _vtt(transcription: Transcription) -> str:
    return "WEBVTT\n\n" + "".join(
        f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{_line(segment)}\n\n"
        for segment in transcription.segments
    )


def _time(seconds: float, mark: str) -> str:
    milliseconds = max(0, round(1000 * seconds))
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02}{mark}{milliseconds % 1000:03}"


def _line(segment: Segment) -> str:
    """Return its text, which must neither end the subtitle nor look like times."""
    return " ".join(segment.text.split()).replace("-->", "->")


FORMATS: Mapping[str, Callable[[Transcription], str]] = {
    "text": _text,
    "json": lambda transcription: json.dumps({"text": transcription.text}, ensure_ascii=False) + "\n",
    "srt": _srt,
    "vtt": _vtt,
    "verbose_json": lambda transcription: json.dumps(verbose(transcription), ensure_ascii=False) + "\n",
}
"""Each format by its name."""
FORMS_OF_TEXT = ("json", "text")
"""Those without times."""
