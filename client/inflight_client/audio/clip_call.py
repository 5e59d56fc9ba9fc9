"""The requests of `transcribe`: one clip each."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from inflight_client.audio.cut import Block
from inflight_client.audio.decode import MAX_SECONDS, SAMPLE_RATE
from inflight_client.audio.transcription import TranscribedBlock, parse_segments
from inflight_client.deadline import deadline_ms
from inflight_client.encoder_call import no_model, unsuitable_model
from inflight_client.error_mapping import error_from_message
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest, InferResponse, ModelMetadata, Tensor
from inflight_client.validation import check_int, check_number, check_timeout, check_utf8, invalid_value

BLOCKS_AT_A_TIME = 8
"""Of one audio in flight: enough for the server's batches, and few before another caller's short clip."""
MAX_PROMPT = 100_000
"""Characters."""
_SENT_PROMPT = 2_000
"""The last characters, of which the model reads at most 224 tokens."""
_LANGUAGE = re.compile(r"[a-z]{2,3}")
SpeechTask = Literal["transcribe", "translate"]


class TranscribeOptions(TypedDict, total=False):
    """Keyword arguments of `transcribe` and `transcribe_blocks`.

    - `language`: the language's code, such as `en`; by default the one that is heard first.
    - `task` (`transcribe`): or `translate`, into English.
    - `prompt`: words that may come, such as names, and the style of the text.
    - `temperature` (0): the first to be tried; at 0, the server tries higher ones for text that is improbable or
      repeats itself.
    - `beam_width` (1): number of beams.
    - `timestamps` (True): times of segments; without them, a block is one segment, and takes less time.
    - `word_timestamps` (False): times of words too.
    - `priority` (0): clips with a higher priority leave the server's queue first; blocks after the first have
      one less.
    - `timeout`: seconds for the whole call, retries included.
    - `max_seconds` (7200): longer audio is refused.
    """

    language: str | None
    task: SpeechTask
    prompt: str | None
    temperature: float
    beam_width: int
    timestamps: bool
    word_timestamps: bool
    priority: int
    timeout: float | None
    max_seconds: float


@dataclass(frozen=True)
class ClipOptions:
    """The options of a call. Raises InflightError for values that no server accepts."""

    model: str
    language: str | None = None
    task: SpeechTask = "transcribe"
    prompt: str | None = None
    temperature: float = 0.0
    beam_width: int = 1
    timestamps: bool = True
    word_timestamps: bool = False
    priority: int = 0
    timeout: float | None = None
    max_seconds: float = MAX_SECONDS
    openai: bool = False
    """Whether a gateway answers."""

    def __post_init__(self) -> None:
        if self.language is not None and not (isinstance(self.language, str) and _LANGUAGE.fullmatch(self.language)):
            raise invalid_value("language", self.language, "the code of a language, such as en, or left out")
        if self.task not in ("transcribe", "translate"):
            raise invalid_value("task", self.task, "transcribe or translate")
        if self.prompt is not None:
            if not isinstance(self.prompt, str) or len(self.prompt) > MAX_PROMPT or re.search(r"<\||\0", self.prompt):
                expected = f"a text of at most {MAX_PROMPT} characters without special tokens (<|...|>) and NUL"
                raise invalid_value("prompt", self.prompt, expected)
            check_utf8("prompt", self.prompt)
        check_number("temperature", self.temperature, 0, 1)
        check_int("beam_width", self.beam_width, 1, 16)
        check_int("priority", self.priority, -(2**31) + 1, 2**31 - 1)
        check_timeout("timeout", self.timeout)
        check_number("max_seconds", self.max_seconds, 1, 2**31)
        for name in ("timestamps", "word_timestamps"):
            if not isinstance(value := getattr(self, name), bool):
                raise invalid_value(name, value, "True or False")

    def prefix(self) -> str:
        """Return what the decoder continues; without a language, the model finds it."""
        words = (self.prompt or "").strip()[-_SENT_PROMPT:]
        prompt = f"<|startofprev|> {words}" if words else ""
        language = f"<|{self.language}|>" if self.language else ""
        plain = "" if self.timestamps else "<|notimestamps|>"
        return f"{prompt}<|startoftranscript|>{language}<|{self.task}|>{plain}"

    def no_model(self, error: InflightError) -> InflightError:
        return no_model(error, "transcribe", self.model)

    def unsuitable_model(self, error: InflightError, metadata: ModelMetadata) -> InflightError:
        return unsuitable_model(error, "transcribe", self.model, metadata)


class ClipRequest:
    """A block's request over its attempts, as `EncoderRequest` is that of texts."""

    def __init__(self, options: ClipOptions, block: Block) -> None:
        self.options, self.block = options, block
        self.result = TranscribedBlock(block.index, block.start, block.end)
        """Of a block without speech, which is not sent."""
        self._error: InflightError | None = None
        self._answered = False

    def build(self, seconds_left: float | None = None) -> InferRequest:
        """Return the request; None: without a deadline."""
        import numpy

        self._answered, self._error = False, None
        options, request_id = self.options, uuid.uuid4().hex
        samples = numpy.ascontiguousarray(self.block.samples, "<f4")
        if options.openai:
            body = {
                "model": options.model,
                "samples": samples,
                "language": options.language,
                "task": options.task,
                "prompt": options.prompt,
                "temperature": options.temperature or None,
                "beam_width": options.beam_width if options.beam_width > 1 else None,
                "timestamps": options.timestamps,
                "word_timestamps": options.word_timestamps,
                "priority": self._priority or None,
            }
            return InferRequest(options.model, request_id, task="transcribe", body=body)
        optional: dict[str, tuple[str, Any]] = {
            "beam_width": ("INT32", options.beam_width if options.beam_width > 1 else None),
            "temperature": ("FP32", options.temperature or None),
            "word_timestamps": ("BOOL", options.word_timestamps or None),
            "priority": ("INT32", self._priority or None),
            "deadline_ms": ("INT32", None if seconds_left is None else deadline_ms(seconds_left)),
        }
        inputs = {
            "WAV": Tensor("FP32", (1, len(samples)), samples.tobytes()),
            "WAV_LENS": Tensor("INT32", (1, 1), (len(samples),)),
            "TEXT_PREFIX": Tensor("BYTES", (1, 1), (options.prefix(),)),
            **{name: Tensor(kind, (1, 1), (value,)) for name, (kind, value) in optional.items() if value is not None},
        }
        return InferRequest(options.model, request_id, inputs, task="transcribe")

    @property
    def _priority(self) -> int:
        return self.options.priority - (self.block.index > 0)

    def add(self, response: InferResponse) -> None:
        """Read the response. Raises InflightError `answer_damaged`."""
        if self._answered:
            raise InflightError("there are two responses to one clip; send the audio again", "answer_damaged")
        self._answered = True
        if message := response.text("error"):
            self._error = error_from_message(message)
            return
        transcript = response.text("TRANSCRIPTS")
        if transcript is None:
            raise InflightError("the answer has no TRANSCRIPTS; send the audio again", "answer_damaged")
        seconds, block = len(self.block.samples) / SAMPLE_RATE, self.block
        given = response.text("language") or self.options.language
        found, segments = parse_segments(response.text("SEGMENTS"), transcript, seconds, block.start, given)
        language = response.text("language") or found or self.options.language or ""
        model = response.text("model") or self.options.model
        self.result = TranscribedBlock(block.index, block.start, block.end, language, segments, model)

    def check(self) -> None:
        """Raise InflightError after an attempt if the clip has no answer, or an error."""
        if not self._answered:
            raise InflightError("the server ended the answer without a response; send the audio again", "server_gone")
        if self._error is not None:
            raise self._error

    def fail(self, error: InflightError) -> None:
        """Raise the error of the last attempt."""
        raise error.at(f"at {self.block.start:.1f} s") if self.block.index else error

    def raise_first(self) -> None:
        """Nothing: an error is raised by `fail`."""
