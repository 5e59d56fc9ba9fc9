"""Builds the responses of transcriptions: OpenAI's JSON, subtitles, and events."""

from __future__ import annotations

import math
from typing import Any

import orjson
from inflight_client import Transcription
from inflight_client.audio.formats import FORMATS, verbose

from inflight.openai_api.frames import DONE, event_frame
from inflight.openai_api.transcription_request import TranscriptionRequest

_TEXT = "text/plain; charset=utf-8"
_CONTENT_TYPES = {"text": _TEXT, "srt": _TEXT, "vtt": "text/vtt; charset=utf-8"}


def transcription_body(transcription: Transcription, parsed: TranscriptionRequest) -> tuple[bytes, str]:
    """Return the body of a response, and its content type."""
    kind = parsed.response_format
    if kind in _CONTENT_TYPES:
        return FORMATS[kind](transcription).encode(), _CONTENT_TYPES[kind]
    body: dict[str, Any] = {"text": transcription.text}
    if kind == "verbose_json":
        body = verbose(transcription)
        if "segment" not in parsed.granularities:
            del body["segments"]
        if "word" in parsed.granularities:
            body.setdefault("words", [])
    return orjson.dumps(body | {"usage": _usage(transcription)}), "application/json"


def delta_frame(text: str) -> bytes:
    """Return the event of a segment's text."""
    return event_frame({"type": "transcript.text.delta", "delta": text})


def done_frames(transcription: Transcription, input_tokens: int, output_tokens: int) -> bytes:
    """Return the events that end a stream."""
    total = input_tokens + output_tokens
    usage = {"type": "tokens", "input_tokens": input_tokens, "output_tokens": output_tokens, "total_tokens": total}
    return event_frame({"type": "transcript.text.done", "text": transcription.text, "usage": usage}) + DONE


def _usage(transcription: Transcription) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcription.duration)}
