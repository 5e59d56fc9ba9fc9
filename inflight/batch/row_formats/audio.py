"""Rows of audio: the address of a file each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inflight_client import InflightError
from inflight_client.audio.clip_call import ClipOptions
from inflight_client.audio.transcription import Transcription
from inflight_client.validation import shorten

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import Row, RowAnswer, RowRequest, RowResult, TranscribeRequest
from inflight.batch.job.spec import EncodeSpec, InputSpec
from inflight.batch.row_formats.plain import PlainRowFormat
from inflight.batch.storage.addresses import is_database
from inflight.openai_api.messages import checked_text


class AudioRowFormat(PlainRowFormat):
    """The address of a row's audio is a column or the template's: a path, relative to the folder of the input, or an
    address of fsspec. A column `language` has that of a row's audio."""

    def __init__(self, spec: InputSpec, encode: EncodeSpec) -> None:
        super().__init__(spec, encode.task)
        self._folder = "" if is_database(spec.address) else spec.address.rpartition("/")[0]
        self._request = TranscribeRequest(
            "",
            encode.language,
            "translate" if encode.to_english else "transcribe",
            encode.initial_prompt,
            encode.beam_width or 1,
            encode.word_timestamps,
            encode.max_seconds,
        )
        try:
            _check(self._request)
        except InflightError as error:
            raise BatchError(f"{error}; the options of the job have it", "input_invalid") from None

    def request(self, values: Mapping[str, Any]) -> RowRequest:
        if not (address := checked_text(*self._source(values), empty=True)):
            raise InflightError("the audio of the row is empty; name a file", "row_invalid")
        if "${" in address:  # a row could send secrets to its own server
            raise InflightError(
                f"the audio {shorten(address)} names a variable, which only the job's options may; write the address"
                " out",
                "row_invalid",
            )
        request = replace(self._request, audio=self._absolute(address))
        if language := values.get("language"):  # an empty one in CSV is none
            request = replace(request, language=language)
            _check(request)
        return request

    def answer_values(self, answer: RowAnswer) -> tuple[dict[str, Any], tuple[int, int], int]:
        assert isinstance(answer, Transcription)
        segments = [_segment(each, self._request.word_timestamps) for each in answer.segments]
        fields = {"text": answer.text, "language": answer.language, "duration": answer.duration, "segments": segments}
        return fields, (0, sum(len(each.tokens) for each in answer)), 0

    def format_answer(self, row: Row, answer: RowAnswer, attempts: int) -> RowResult:
        assert isinstance(answer, Transcription)
        return replace(super().format_answer(row, answer, attempts), audio_seconds=answer.duration)

    def _absolute(self, address: str) -> str:
        if "://" in address or address.startswith("/"):
            return address
        if not self._folder:
            raise InflightError(
                f"the audio {shorten(address)} is a relative path, and rows of a database are in no folder; write the"
                " whole path",
                "row_invalid",
            )
        return f"{self._folder}/{address}"


def _segment(segment: Any, words: bool) -> dict[str, Any]:
    """Return a segment for JSON, as in OpenAI's verbose_json."""
    values = {name: getattr(segment, name) for name in _SEGMENT}
    return values | ({"words": [vars(word) for word in segment.words]} if words else {})


_SEGMENT = ("start", "end", "text", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob")


def _check(request: TranscribeRequest) -> None:
    """Raise InflightError for options that no server accepts."""
    ClipOptions(
        *("whisper", request.language, request.task, request.prompt, 0.0, request.beam_width, request.word_timestamps)
    )
