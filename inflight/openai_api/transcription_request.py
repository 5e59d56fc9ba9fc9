"""Parses the forms of transcriptions and translations of audio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight_client import InflightError
from inflight_client.audio.clip_call import ClipOptions, SpeechTask
from inflight_client.audio.formats import FORMS_OF_TEXT

from inflight.openai_api.errors import ApiError
from inflight.openai_api.field_reader import FieldReader, read_body
from inflight.openai_api.fields import TRANSCRIPTION_FIELDS, TRANSLATION_FIELDS, Field

AUDIO_PATHS: Mapping[SpeechTask, str] = {
    "transcribe": "/v1/audio/transcriptions",
    "translate": "/v1/audio/translations",
}
AUDIO_FIELDS: Mapping[SpeechTask, Mapping[str, Field]] = {
    "transcribe": TRANSCRIPTION_FIELDS,
    "translate": TRANSLATION_FIELDS,
}


@dataclass(frozen=True, kw_only=True)
class TranscriptionRequest:
    """`model` None: the only one for speech. `options` are those of the client's `transcribe`."""

    model: str | None
    options: Mapping[str, Any]
    response_format: str
    granularities: tuple[str, ...]
    stream: bool
    priority: int
    no_effect: tuple[str, ...]


def form_names(task: SpeechTask) -> frozenset[str]:
    """Return the names that parts of the form may have."""
    return frozenset(name for field in AUDIO_FIELDS[task] for name in (field, f"{field}[]"))


def parse_transcription(task: SpeechTask, form: Mapping[str, list[str]]) -> TranscriptionRequest:
    """Parse the fields of a form, the file left out. Raises ApiError, which names the field."""
    table = AUDIO_FIELDS[task]
    reader = read_body({name.removesuffix("[]"): _value(name, texts, table) for name, texts in form.items()}, table)
    response_format = reader.choice("response_format", "json")
    granularities = _granularities(reader, response_format)
    stream = reader.boolean("stream")
    if stream and response_format not in FORMS_OF_TEXT:
        raise ApiError(
            f"{response_format} is not streamed; send response_format json or text, or no stream",
            "unsupported_input",
            "stream",
        )
    priority = reader.integer("priority") or 0
    given = {name: reader.values[name] for name in ("language", "prompt", "temperature") if name in reader.values}
    options = {
        **given,
        "task": task,
        "priority": priority,
        "timestamps": stream or response_format not in FORMS_OF_TEXT,
        "word_timestamps": "word" in granularities,
        "beam_width": reader.integer("beam_width") or 1,
    }
    try:
        ClipOptions("", **options)
    except InflightError as error:
        raise ApiError(str(error), error.code, str(error).partition(" ")[0]) from None
    return TranscriptionRequest(
        model=reader.text("model") if "model" in reader.values else None,
        options=options,
        response_format=response_format,
        granularities=granularities,
        stream=stream,
        priority=priority,
        no_effect=reader.no_effect,
    )


def _value(name: str, texts: list[str], table: Mapping[str, Field]) -> Any:
    """Return the value of a field, which a form has as text."""
    kind = table[name.removesuffix("[]")].schema.get("type")
    if name.endswith("[]") or kind == "array":
        return texts
    (text,) = texts
    if kind in ("number", "integer", "boolean"):
        try:
            return json.loads(text.lower())
        except (ValueError, RecursionError):
            pass  # the reader says what it must be
    return text


def _granularities(reader: FieldReader, response_format: str) -> tuple[str, ...]:
    """Return the units that have times."""
    given = reader.values.get("timestamp_granularities")
    if given is None:
        return ("segment",)
    if response_format != "verbose_json" or not given or not set(given) <= {"word", "segment"}:
        raise ApiError(
            "timestamp_granularities must be word, segment or both, with response_format verbose_json",
            "invalid_parameter",
            "timestamp_granularities",
        )
    return tuple(given)
