"""One request to an encoder: its options and texts, and what its responses say."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from inflight_client.deadline import deadline_ms
from inflight_client.error_mapping import error_from_message
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest, InferResponse, ModelMetadata, Tensor
from inflight_client.validation import check_int, check_number, check_timeout, check_utf8, invalid_value

if TYPE_CHECKING:
    from inflight_client.transport import Array

Task = Literal["embed", "rerank", "classify", "transcribe", "text2text"]
MODELS: Mapping[Task, str] = {
    "embed": "embedding",
    "rerank": "rerank",
    "classify": "classify",
    "transcribe": "whisper",
    "text2text": "text2text",
}
"""The models of inflight's repository, by task."""
_VALUES: Mapping[Task, str] = {
    "embed": "embedding",
    "rerank": "scores",
    "classify": "scores",
    "transcribe": "TRANSCRIPTS",
    "text2text": "text_output",
}
_WORK: Mapping[Task, str] = {
    "embed": "embeds texts",
    "rerank": "reranks documents",
    "classify": "classifies texts",
    "transcribe": "transcribes audio",
    "text2text": "translates or summarizes texts",
}
_UNKNOWN_INPUT = re.compile("unexpected inference input '([^']*)'")
"""Of Triton's message."""


class EncoderCallOptions(TypedDict, total=False):
    """Keyword arguments of `embed`, `rerank`, `classify` and `translate`.

    - `truncate` (False): cut a text over the model's length; otherwise it is refused.
    - `priority` (0): texts with a higher priority leave the server's queue first.
    - `timeout`: seconds for the whole call, retries included.
    - `return_errors` (False): return the errors by the index of their text in the result's `errors`; otherwise the
      first error is raised and cancels the other requests.
    """

    truncate: bool
    priority: int
    timeout: float | None
    return_errors: bool


@dataclass(frozen=True)
class EncoderOptions:
    """The options of a call, with those of its task. Raises InflightError for values that no server accepts."""

    task: Task
    model: str
    query: str | None = None
    input_type: str | None = None
    dimensions: int | None = None
    truncate: bool = False
    priority: int = 0
    top_n: int | None = None
    target_language: str | None = None
    source_language: str | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    return_errors: bool = False
    openai: bool = False
    """Whether a gateway answers."""

    def __post_init__(self) -> None:
        if self.task == "rerank":
            if not isinstance(self.query, str):
                raise invalid_value("query", self.query, "a text")
            check_utf8("query", self.query)
        for name, expected in _NAMES.items():
            if (value := getattr(self, name)) is not None:
                if not (isinstance(value, str) and value):
                    raise invalid_value(name, value, f"{expected}, or None")
                check_utf8(name, value)
        for name, most in _NUMBERS.items():
            if (value := getattr(self, name)) is not None:
                check_int(name, value, 1, most)
        for name, bounds in (("length_penalty", (-10, 10)), ("repetition_penalty", (0.1, 10))):
            if (value := getattr(self, name)) is not None:
                check_number(name, value, *bounds)
        check_int("priority", self.priority, -(2**31), 2**31 - 1)
        check_timeout("timeout", self.timeout)
        for name in ("truncate", "return_errors"):
            if not isinstance(value := getattr(self, name), bool):
                raise invalid_value(name, value, "True or False")

    @property
    def texts_name(self) -> str:
        """The name of the caller's argument."""
        return "documents" if self.task == "rerank" else "texts"

    def no_model(self, error: InflightError) -> InflightError:
        return no_model(error, self.task, self.model)

    def unsuitable_model(self, error: InflightError, metadata: ModelMetadata) -> InflightError:
        return unsuitable_model(error, self.task, self.model, metadata)


_NAMES = {
    "input_type": "the name of a prompt of the model",
    "target_language": "the code of a language, or the name of a prompt of the model",
    "source_language": "the code of a language",
}
_NUMBERS = {"dimensions": 2**31 - 1, "top_n": 2**31 - 1, "beam_width": 32, "max_tokens": 2**31 - 1}
TRANSLATE_OPTIONS = (
    *("target_language", "source_language"),
    *("beam_width", "length_penalty", "repetition_penalty", "max_tokens"),
)
"""Of `translate` alone; a gateway has the same names."""


def no_model(error: InflightError, task: Task, model: str) -> InflightError:
    """Return an error for a model, or an input of it, that the server does not have with the next step; and others
    unchanged."""
    if unknown := _UNKNOWN_INPUT.search(str(error)):
        return InflightError(
            f"the server's model {model} has no input {unknown[1]}, which later versions of inflight have; leave it"
            " out, or update the server",
            "unsupported_input",
        )
    if error.code != "model_not_found":
        return error
    return InflightError(
        f"the server has no model {model}, which {_WORK[task]}; start one with"
        f" `inflight serve ENGINE --{task} ENGINE`, or give the client the name of the model",
        "model_not_found",
    )


def unsuitable_model(error: InflightError, task: Task, model: str, metadata: ModelMetadata) -> InflightError:
    """Return `unsupported_deployment` if the model named by the caller has other outputs, else the error."""
    if _VALUES[task] in metadata.outputs:
        return no_model(error, task, model)
    return InflightError(
        f"the model {model} has no output {_VALUES[task]}, but {', '.join(sorted(metadata.outputs))};"
        f" give the client the name of the model that {_WORK[task]}, or none",
        "unsupported_deployment",
    )


def is_encoder(model: ModelMetadata) -> bool:
    """Return whether a model does one of these tasks."""
    return not model.outputs.keys().isdisjoint(_VALUES.values())


@dataclass(frozen=True, slots=True)
class Item:
    """A text with its index among the caller's."""

    index: int
    text: str | tuple[int, ...]

    @property
    def size(self) -> int:
        """Characters, about four for a token id."""
        return len(self.text) if isinstance(self.text, str) else 4 * len(self.text)


class Answer(NamedTuple):
    """The outputs for some texts; rows of texts with an error have no meaning."""

    indices: tuple[int, ...]
    values: Array
    """float32 [texts, dimensions or labels or 1]."""
    input_tokens: Array
    truncated: Array
    labels: tuple[str, ...] = ()
    logits: Array | None = None
    """Like `values`; they tell scores apart that are rounded to the same number."""
    texts: tuple[str, ...] = ()
    """Of texts to translate, whose values are their numbers of tokens; and why each ended."""
    finish_reasons: tuple[str, ...] = ()


class EncoderRequest:
    """The texts of one request over its attempts. A retry sends only texts whose error another attempt may remedy."""

    def __init__(self, options: EncoderOptions, items: list[Item]) -> None:
        self.options = options
        self.answers: list[Answer] = []
        """A later answer replaces the rows of an earlier one."""
        self.errors: dict[int, InflightError] = {}
        """The errors of texts by their index."""
        self.model = options.model
        self._pending = items
        self._answered = False

    def build(self, seconds_left: float | None = None) -> InferRequest:
        """Return the request for all texts that need an answer; None: without a deadline."""
        self._answered = False
        options, request_id = self.options, uuid.uuid4().hex
        if options.openai:
            return InferRequest(options.model, request_id, task=options.task, body=self._body())
        count = len(self._pending)
        inputs = self._text_inputs()
        optional: dict[str, tuple[str, Any]] = {
            "input_type": ("BYTES", options.input_type),
            "dimensions": ("INT32", options.dimensions),
            "target_prefix": ("BYTES", options.target_language),
            "source_language": ("BYTES", options.source_language),
            "beam_width": ("INT32", options.beam_width),
            "length_penalty": ("FP32", options.length_penalty),
            "repetition_penalty": ("FP32", options.repetition_penalty),
            "max_tokens": ("INT32", options.max_tokens),
            "truncate": ("BOOL", options.truncate or None),
            "priority": ("INT32", options.priority or None),
            "deadline_ms": ("INT32", None if seconds_left is None else deadline_ms(seconds_left)),
        }
        for name, (datatype, value) in optional.items():
            if value is not None:
                inputs[name] = self._tensor(datatype, (value,) * (1 if options.task == "rerank" else count))
        further = _FURTHER.get(options.task, ())
        outputs = (_VALUES[options.task], "num_input_tokens", "truncated", "error", *further)
        return InferRequest(options.model, request_id, inputs, outputs, task=options.task)

    def _body(self) -> dict[str, Any]:
        """Return the fields of a gateway's route. An empty name is that of the task's only model."""
        options = self.options
        texts = [item.text for item in self._pending]
        optional = {
            "model": options.model or None,
            "input_type": options.input_type,
            "dimensions": options.dimensions,
            **{name: getattr(options, name) for name in TRANSLATE_OPTIONS},
            "priority": options.priority or None,
            "encoding_format": "base64" if options.task == "embed" else None,
        }
        fields: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        fields |= {"query": options.query, "documents": texts} if options.task == "rerank" else {"input": texts}
        return {**fields, "truncate": options.truncate, "return_errors": True}

    def _text_inputs(self) -> dict[str, Tensor]:
        texts: list[Any] = [item.text for item in self._pending]
        if self.options.task == "rerank":
            return {"query": Tensor("BYTES", (1,), (self.options.query,)), "documents": self._tensor("BYTES", texts)}
        if isinstance(texts[0], str):
            return {"text_input": self._tensor("BYTES", texts)}
        longest = max(map(len, texts))
        padded = tuple(each for ids in texts for each in (*ids, *(0,) * (longest - len(ids))))
        return {
            "input_ids": Tensor("INT32", (len(texts), longest), padded),
            "input_lengths": self._tensor("INT32", [len(ids) for ids in texts]),
        }

    def _tensor(self, datatype: str, values: Sequence[Any]) -> Tensor:
        """Return a tensor with one value for each text, or of a rerank request with all values in one dimension."""
        shape = (len(values),) if self.options.task == "rerank" else (len(values), 1)
        return Tensor(datatype, shape, tuple(values))

    def add(self, response: InferResponse) -> None:
        """Read the response. Raises InflightError `answer_damaged`."""
        if self._answered:
            raise _damaged("there are two responses to one request")
        self._answered = True
        count = len(self._pending)
        texts, reasons = [tuple(response.texts(name) or ()) for name in ("text_output", "finish_reason")]
        if self.options.task == "text2text":
            values = _output(response, "num_output_tokens", count)
            if not len(texts) == len(reasons) == count:
                raise _damaged(
                    f"text_output has {len(texts)} values and finish_reason {len(reasons)} for {count} texts"
                )
        else:
            values = _output(response, _VALUES[self.options.task], count, "float32")
        tokens, truncated = (_output(response, name, count)[:, 0] for name in ("num_input_tokens", "truncated"))
        if len(messages := response.texts("error") or ("",) * count) != count:
            raise _damaged(f"error has {len(messages)} values for {count} texts")
        labels: tuple[str, ...] = ()
        if self.options.task == "classify" and "" in messages:
            labels = _read_labels(response, values.shape[1], messages.index(""))
        logits = (
            _output(response, "logits", count, "float32") if "logits" in _FURTHER.get(self.options.task, ()) else None
        )
        indices = tuple(item.index for item in self._pending)
        self.answers.append(Answer(indices, values, tokens, truncated, labels, logits, texts, reasons))
        pairs = zip(self._pending, messages, strict=True)
        errors = {item.index: error_from_message(message) for item, message in pairs if message}
        for item in self._pending:
            self.errors.pop(item.index, None)
        self.errors |= errors
        self.model = response.text("model") or self.model  # a gateway tells its model's name
        self._pending = [item for item in self._pending if item.index in errors and errors[item.index].retry]

    def check(self) -> None:
        """Raise InflightError after an attempt if a text has no answer, or an error that another attempt may remedy."""
        if not self._answered:
            raise InflightError("the server ended the answer without a response; send the request again", "server_gone")
        if self._pending:
            raise self._error_of(self._pending[0].index)

    def fail(self, error: InflightError) -> None:
        """Handle the error of the last attempt: raise it, or with `return_errors` keep it for the texts it concerns."""
        if not self.options.return_errors:
            raise error
        for item in self._pending:
            self.errors.setdefault(item.index, error)

    def raise_first(self) -> None:
        """Raise the error of the first text that has one, unless errors are to be returned."""
        if self.errors and not self.options.return_errors:
            raise self._error_of(min(self.errors))

    def _error_of(self, index: int) -> InflightError:
        return self.errors[index].at(f"{self.options.texts_name}[{index}]")


_FURTHER: Mapping[Task, tuple[str, ...]] = {
    "rerank": ("logits",),
    "classify": ("logits", "labels"),
    "text2text": ("num_output_tokens", "finish_reason"),
}
"""Outputs of a task besides those of `_VALUES` and of all tasks."""


def _read_labels(response: InferResponse, count: int, row: int) -> tuple[str, ...]:
    """Return the labels of a text that has no error; they are the same for all. Raises InflightError."""
    labels = (response.texts("labels", (row + 1) * count) or ())[row * count :]
    if len(labels) != count:
        raise _damaged(f"labels has {len(labels)} values for {count} scores")
    return labels


def _output(response: InferResponse, name: str, count: int, datatype: str | None = None) -> Array:
    """Return an output as [texts, values of each]. Raises InflightError `answer_damaged` for another shape or type."""
    array = response.array(name)
    if array is None or array.shape[:1] != (count,) or array.ndim > 2 or array.dtype != (datatype or array.dtype):
        actual = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise _damaged(f"{name} is {actual} for {count} texts")
    return array.reshape(count, -1)


def _damaged(what: str) -> InflightError:
    return InflightError(f"the answer is damaged: {what}; send the request again", "answer_damaged")
