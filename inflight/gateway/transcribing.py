"""Transcribes an uploaded audio file on a server, and writes the response."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import ExitStack, aclosing, suppress
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from inflight_client import InflightError, Transcription
from inflight_client.audio import duration
from inflight_client.audio.clip_call import BLOCKS_AT_A_TIME, SpeechTask

from inflight.gateway.http import BodyMemory, Request, Response
from inflight.gateway.multipart import Form
from inflight.gateway.server_pool import Candidate
from inflight.gateway.servers import Encoder
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.transcription_request import TranscriptionRequest, form_names, parse_transcription
from inflight.openai_api.transcription_response import delta_frame, done_frames, transcription_body

TOKENS_PER_SECOND = 50
"""What a second of audio counts in quotas and between tenants: the positions of Whisper's encoder."""
_BLOCK_SECONDS = 30
_FORM_BYTES = 64 * 1024
"""Of a body, beside the file."""
_UPLOADS = 16
"""So many files of the longest size are held at a time, or more that are shorter."""


class _TooLargeError(Exception):
    pass


class AudioUpload:
    """An audio file that has no name, and goes with the request."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self.file = file
        self.seconds = 0.0
        """The length in seconds that its header has, or else the longest that is allowed."""
        self._left = most

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise _TooLargeError
        self.file.write(data)

    def measure(self, most: float) -> None:
        """Find its length. Raises ApiError for what is no audio, or longer."""
        try:
            seconds = duration(self.file)
        except InflightError as error:
            raise ApiError.from_error(error, "file") from None
        self.seconds = min(most, seconds or most)


class AudioUploads:
    """Reads the forms of requests with audio. All files that are held at a time have a bound."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._most, self._most_seconds = settings.max_audio_bytes, settings.max_audio_seconds
        self._longest = self._most + _FORM_BYTES
        self._room = BodyMemory((_UPLOADS + 1) * self._longest)

    async def read(self, task: SpeechTask, request: Request) -> tuple[TranscriptionRequest, AudioUpload]:
        """Read a request's form. Raises ApiError: 413 for a large file, 503 while others have the room."""
        length = request.headers.get("content-length", "")
        held, read = int(length) if length.isdigit() else self._longest, 0
        if held > self._longest:
            raise await request.too_large(self._most)
        try:
            self._room.take(2 * held)  # as much is left for smaller files
        except ApiError:
            await request.discard()
            raise
        self._room.give_back(held)
        request.on_close(lambda: self._room.give_back(held))

        def begin(name: str, fields: object) -> AudioUpload:
            stack = ExitStack()
            stack.enter_context(suppress(OSError))  # on a full disk, of what closing can't write either
            request.on_close(stack.close)
            return AudioUpload(cast(BinaryIO, stack.enter_context(TemporaryFile())), self._most)

        async def call(function: Any, *parts: bytes) -> None:
            nonlocal read
            read += sum(map(len, parts))
            if read > self._longest:
                raise _TooLargeError
            await asyncio.to_thread(function, *parts)

        form = Form(form_names(task), begin)
        try:
            await form.read(request, call)
            self._room.give_back(held - read)
            held = read
            upload = form.whole_file()
            await asyncio.to_thread(upload.file.flush)
        except _TooLargeError:
            raise await request.too_large(self._most) from None
        except OSError as error:
            raise ApiError(
                f"the audio can't be stored ({error.strerror}); send it again later", "disk_full", status=507
            ) from None
        parsed = parse_transcription(task, form.fields)
        await asyncio.to_thread(upload.measure, self._most_seconds)
        return parsed, upload


class Transcribing:
    """One request at one model."""

    def __init__(
        self, parsed: TranscriptionRequest, upload: AudioUpload, candidate: Candidate, until: float, most_seconds: float
    ) -> None:
        """`until` is a moment of the monotonic clock. Raises ApiError for a model that is not at Triton."""
        if not isinstance(candidate.target, Encoder):
            raise ApiError(
                f"audio for the model {candidate.model} is not passed on to its server; send it there",
                "unsupported_input",
                "model",
            )
        self._parsed, self._upload, self._encoder = parsed, upload, candidate.target
        self._until, self._most_seconds = until, most_seconds
        self.estimated_tokens = _tokens(upload.seconds)
        self.places = min(BLOCKS_AT_A_TIME, math.ceil(upload.seconds / _BLOCK_SECONDS)) or 1

    async def respond(self, request: Request) -> None:
        """Answer the request. Raises ApiError or InflightError."""
        parsed, outcome = self._parsed, request.outcome
        outcome.sent = True
        blocks: list[Any] = []
        calls = self._encoder.server.client.transcribe_blocks(
            self._upload.file,
            **parsed.options,
            timeout=max(0.001, self._until - time.monotonic()),
            max_seconds=self._most_seconds,
        )
        try:
            async with aclosing(calls):
                async for block in calls:
                    if outcome.first_token_at is None and block.segments:
                        outcome.first_token_at = time.monotonic()
                    outcome.input_tokens = outcome.prompt_tokens = _tokens(block.end)
                    outcome.output_tokens += sum(len(segment.tokens) for segment in block.segments)
                    outcome.texts += bool(block.language or block.segments)
                    if parsed.stream:
                        await self._stream(request, block, not any(each.segments for each in blocks))
                    blocks.append(block)
        except asyncio.CancelledError:
            outcome.input_tokens = max(outcome.input_tokens, self.estimated_tokens)  # the server may compute the rest
            raise
        except InflightError as error:
            self._encoder.server.note_failure(error)
            of_language = parsed.options.get("language") and error.code == "unsupported_input"
            param = "file" if error.code.startswith("audio_") else "language" if of_language else None
            raise ApiError.from_error(error, param) from None
        transcription = Transcription.join(blocks, parsed.options["task"], parsed.options.get("language"))
        outcome.answered, outcome.audio_seconds = True, transcription.duration
        request.answered()
        if parsed.stream:
            await request.end(done_frames(transcription, outcome.input_tokens, outcome.output_tokens))
        else:
            body, content_type = await asyncio.to_thread(transcription_body, transcription, parsed)
            await request.respond(Response(body, content_type=content_type))

    async def _stream(self, request: Request, block: Any, first: bool) -> None:
        if not request.started:
            await request.start_stream()
        for place, segment in enumerate(block.segments):
            text = segment.text.lstrip() if first and not place else segment.text
            await request.write(delta_frame(text))


def _tokens(seconds: float) -> int:
    return math.ceil(seconds) * TOKENS_PER_SECOND
