"""The rows of a job: as read, as sent, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import orjson
from inflight_client.audio.clip_call import SpeechTask
from inflight_client.audio.transcription import Transcription
from inflight_client.call import CallOptions, Prompt
from inflight_client.encoder_call import TRANSLATE_OPTIONS
from inflight_client.encodings import Classifications, Embeddings, Reranking, Translations
from inflight_client.results import Generation, Usage
from inflight_client.sampling import Sampling

from inflight.openai_api.tools import NO_TOOLS, Tools

Text = str | Sequence[int]
"""A text, or the ids of its tokens."""

Position = int | str | Sequence[Any]
"""Where the next row begins. A JSON value that only the source interprets."""


class RowStatus(StrEnum):
    """The final status of a row; each row has exactly one.

    `ok`: answered. `error`: sent, and refused or given up. `dead`: not a valid request (unreadable, without an id, with
    a duplicate id, without the template's values), or a row that crashes engines.
    """

    OK = "ok"
    ERROR = "error"
    DEAD = "dead"


@dataclass(frozen=True)
class InputRecord:
    """A row as a source reads it: its values by name, or an error.

    `line` counts from 1 and is for messages; `position` is where the next row begins.
    """

    line: int
    values: Mapping[str, Any] | None
    position: Position
    error: str = ""


@dataclass(frozen=True)
class GenerateRequest:
    """A call of the client: a prompt and its options. `model`: the model that the row names, if any.

    `as_model`: unset sampling parameters are the model's. `as_chat`: so is whether a text is sent as a conversation.
    `n`: the number of choices. `schema`: the JSON schema that each must match. `chat`: reasoning and calls are parsed.
    `body`: the request as the row has it, for servers of OpenAI's protocol. `wants_scores`: a condition reads the log
    probabilities. `retries_invalid`: whether an answer that does not match the schema is worth another attempt.
    `is_probe`: a simple request, to see whether the server answers.
    """

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    options: CallOptions = field(default_factory=CallOptions)
    """All others."""
    model: str | None = None
    as_model: bool = False
    as_chat: bool = False
    n: int = 1
    tools: Tools = NO_TOOLS
    schema: Mapping[str, Any] | None = None
    chat: bool = False
    body: Mapping[str, Any] | None = None
    wants_scores: bool = False
    retries_invalid: bool = True
    is_probe: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether the same request has the same answer again: it is greedy, or has a seed."""
        if self.body is not None:
            return self.body.get("temperature") == 0 or self.body.get("seed") is not None
        sampling = self.sampling
        if sampling.seed is not None or sampling.temperature == 0 or sampling.top_k == 1:
            return True
        unset = sampling.temperature is None and not sampling.top_p and not sampling.top_k
        return unset and not self.as_model

    @property
    def text(self) -> str:
        """The text whose prefix rows share if their prompts do."""
        return self.prompt if isinstance(self.prompt, str) else orjson.dumps(self.prompt).decode()

    @property
    def characters(self) -> int:
        return len(self.prompt) if isinstance(self.prompt, str) else sum(len(str(message)) for message in self.prompt)


@dataclass(frozen=True)
class EmbedRequest:
    """Texts to embed: one, or those of a request of OpenAI's API."""

    texts: tuple[Text, ...]
    input_type: str | None = None
    dimensions: int | None = None
    truncate: bool = False
    model: str | None = None

    @property
    def shared(self) -> tuple[object, ...]:
        """What requests must have in common to be sent as one."""
        return (self.input_type, self.dimensions, self.truncate)

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class ClassifyRequest:
    """A text to classify."""

    text: Text
    truncate: bool = False
    model: str | None = None

    @property
    def texts(self) -> tuple[Text, ...]:
        return (self.text,)

    @property
    def shared(self) -> tuple[object, ...]:
        return (self.truncate,)

    @property
    def characters(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class RerankRequest:
    """Documents to score for a query."""

    query: str
    documents: tuple[str, ...]
    truncate: bool = False
    model: str | None = None

    @property
    def characters(self) -> int:
        return len(self.query) * len(self.documents) + sum(map(len, self.documents))


@dataclass(frozen=True)
class TranslateRequest:
    """A text to translate or to summarize, and options of the client's call."""

    text: str
    target_language: str | None = None
    source_language: str | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    truncate: bool = False
    model: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)

    @property
    def shared(self) -> tuple[object, ...]:
        """What requests must have in common to be sent as one."""
        return tuple(self.options.values())

    @property
    def options(self) -> dict[str, Any]:
        """Those of the call."""
        return {name: getattr(self, name) for name in (*TRANSLATE_OPTIONS, "truncate")}

    @property
    def characters(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class TranscribeRequest:
    """An audio to transcribe, or to translate into English: its address, and options of the client's call."""

    audio: str
    language: str | None = None
    task: SpeechTask = "transcribe"
    prompt: str | None = None
    beam_width: int = 1
    word_timestamps: bool = False
    max_seconds: float = 7200.0
    model: str | None = None

    @property
    def characters(self) -> int:
        """The same for all: how long an audio is turns out when it is read."""
        return 1


@dataclass(frozen=True)
class ScoreRequest:
    """A context and the continuations to score after it; without any, the context is a text that is scored itself.

    All are texts, or all are token ids. `truncate`: a context that is too long loses its beginning, instead of being
    refused. `max_length`: the most tokens that are scored together; None: as many as the server takes.
    """

    context: Text
    continuations: tuple[Text, ...] = ()
    truncate: bool = False
    max_length: int | None = None
    model: str | None = None

    @property
    def characters(self) -> int:
        return len(self.context) * max(1, len(self.continuations)) + sum(map(len, self.continuations))


RowRequest = (
    GenerateRequest
    | EmbedRequest
    | ClassifyRequest
    | RerankRequest
    | ScoreRequest
    | TranscribeRequest
    | TranslateRequest
)
"""The request of a row, by its task."""


@dataclass(frozen=True)
class Completion:
    """An answer as a response of OpenAI's API has it: its `choices`, and in `rest` what is beside them, usage too."""

    choices: tuple[Mapping[str, Any], ...]
    usage: Usage | None = None
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """How likely a text is: the sum of the natural logarithms of its tokens' probabilities, and how many these are.

    `is_greedy`: each token is the likeliest one at its place. `bytes`: of the text in UTF-8; None for token ids.
    """

    log_prob: float
    tokens: int
    bytes: int | None
    is_greedy: bool


@dataclass(frozen=True)
class Scores:
    """The scores of a row: of each continuation, or of its one text. `total_tokens`: those that were computed."""

    scores: tuple[Score, ...]
    total_tokens: int


RowAnswer = Generation | Completion | Embeddings | Classifications | Reranking | Scores | Transcription | Translations
"""The answer to a row, by its task, for the texts of the row alone."""


Tokens = tuple[int, int]
"""Tokens of prompts, and of answers."""


def add_tokens(first: Tokens, second: Tokens) -> Tokens:
    return first[0] + second[0], first[1] + second[1]


def answer_tokens(answer: RowAnswer) -> Tokens:
    """Return the tokens of an answer and its prompt, as far as the server counts them."""
    if isinstance(answer, Generation | Completion):
        return (0, 0) if answer.usage is None else (answer.usage.input_tokens, answer.usage.output_tokens)
    if isinstance(answer, Transcription):
        return 0, sum(len(segment.tokens) for segment in answer)
    return answer.total_tokens, sum(answer.output_tokens) if isinstance(answer, Translations) else 0


@dataclass(frozen=True)
class Refinement:
    """Why a row went to the model of --refine-with: the condition that its first answer met, and that answer's tokens.

    `error`: the code of why the first answer was kept, if it was.
    """

    because: str
    tokens: Tokens
    error: str = ""

    def fields(self) -> dict[str, Any]:
        """Return what a row's record says of it."""
        values = {"refined": not self.error, "refined_because": self.because}
        values |= dict(zip(("first_input_tokens", "first_output_tokens"), self.tokens, strict=True))
        return values | ({"refine_error": self.error} if self.error else {})


REFINED_FIELDS = ("refined", "refined_because", "first_input_tokens", "first_output_tokens", "refine_error")


@dataclass(frozen=True)
class Row:
    """A valid row. `number` is its place in the input, from 0, counting invalid rows too.

    `context` is data that the row format needs again to write the answer. `spent` are the tokens, of prompt and answer,
    of answers that were not kept. `refinement`: why another model answers it, if one does.
    """

    number: int
    line: int
    id: str
    request: RowRequest
    context: Any = None
    spent: Tokens = (0, 0)
    refinement: Refinement | None = None


@dataclass(frozen=True)
class InvalidRow:
    """A row that is not sent: `status` is error (an error line) or dead (a dead letter)."""

    number: int
    line: int
    id: str | None
    code: str
    message: str
    status: RowStatus = RowStatus.DEAD
    context: Any = None


@dataclass(frozen=True)
class RowResult:
    """The final record of a row: `text` is its line in the file of its status, as JSON without the line end.

    `tokens` are those of prompt and answer; `texts` is the number of texts that were embedded, classified or scored;
    `attempts` is how often the row was sent. `empty`: it was answered without any text. `copied`: its answer is that
    of an identical row. `refined`: it is another model's, whose part of `tokens` is `refine_tokens`. `audio_seconds`:
    of an audio that was transcribed. `blocks`: the key of its blocks in the state, which are no longer needed.
    """

    number: int
    line: int
    id: str | None
    status: RowStatus
    text: bytes
    code: str = ""
    message: str = ""
    tokens: Tokens = (0, 0)
    attempts: int = 0
    texts: int = 0
    empty: bool = False
    copied: bool = False
    refined: bool = False
    refine_tokens: Tokens = (0, 0)
    audio_seconds: float = 0.0
    blocks: bytes = b""

    @classmethod
    def of(cls, row: Row | InvalidRow, status: RowStatus, text: bytes, **values: Any) -> Self:
        return cls(row.number, row.line, row.id, status, text, **values)
