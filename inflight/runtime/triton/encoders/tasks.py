"""What the models of encoders read from a request, and what they make of the encoder's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.batch_runner import BatchInput
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.tokenize import PlainText
from inflight.runtime.speech.clip import Clip
from inflight.runtime.triton.inputs import Inputs
from inflight.text.tokenizer import decoded_text

MAX_DOCUMENTS = 1024
_ALIASES = {"passage": ("document", "corpus"), "document": ("passage", "corpus")}
"""The other names under which a model may have the prompt; sentence-transformers looks for all three."""
_ALWAYS_ACCEPTED = ("query", *_ALIASES)

Outputs = Callable[[Any], dict[str, Any]]
"""Converts the results of a request to its output arrays by name; `Task.empty` says what failed texts have."""


@dataclass(frozen=True)
class TokenIds:
    """A text that was sent as token ids."""

    ids: Any
    truncate: bool


@dataclass(frozen=True)
class TextRequest:
    """The texts of a request: each to be tokenized, as token ids, ready for the engine, or refused; and priorities.

    `query` is that of all pairs, to be checked before them. `ready` makes what the engine takes of a tokenized text,
    whose index comes first.
    """

    texts: list[PlainText | TokenIds | Clip | RequestError]
    priorities: list[int]
    outputs: Outputs
    query: str | None = None
    ready: Callable[[int, EncoderInput], BatchInput] = lambda _, text: text

    @property
    def characters(self) -> int:
        """Return the characters that are held: the query once, as all pairs share it."""
        plain = (text for text in self.texts if isinstance(text, PlainText))
        own = sum(len(text.text if text.document is None else text.document) for text in plain)
        return own + len(self.query or "")


class Task(Protocol):
    """Reads requests and makes outputs. `column` says that the model has a batch dimension."""

    column: bool

    def read(self, inputs: Inputs) -> TextRequest:
        """Return the texts. Raises RequestError for a request that is invalid as a whole."""

    def empty(self, texts: int) -> Any:
        """Return a place for the result of each text, as if all had failed."""


class _RowTask:
    """A task whose results are rows [texts, dimensions]; that of a failed text is NaN."""

    def __init__(self, manifest: EncoderDescription) -> None:
        self._manifest = manifest

    def empty(self, texts: int) -> Any:
        return np.full((texts, self._manifest.dimensions), np.nan, dtype=np.float32)


class Embed(_RowTask):
    """`embedding`: texts to vectors, with the prompt of their input type before each."""

    column = True

    def read(self, inputs: Inputs) -> TextRequest:
        dimensions = inputs.common("dimensions", self._manifest.dimensions)
        self._check(dimensions)
        return _read_texts(inputs, partial(self._outputs, dimensions), self._prompt)

    def _check(self, dimensions: int) -> None:
        """Refuse vectors of a length that the model was not trained for."""
        whole, trained = self._manifest.dimensions, self._manifest.matryoshka
        if trained:
            trained = tuple(size for size in trained if size <= whole)
        if dimensions == whole or (trained == () and 1 <= dimensions < whole) or dimensions in (trained or ()):
            return
        if trained is None:
            allowed = (
                f"{whole}, since the model was not trained for shorter vectors; leave it out, or, if the model was, "
                'add "is_matryoshka": true to its config.json and build it again'
            )
        elif trained:
            allowed = f"one of {', '.join(map(str, sorted({*trained, whole})))}"
        else:
            allowed = f"from 1 to {whole}"
        raise RequestError(f"dimensions is {dimensions}; it must be {allowed}", "invalid_parameter")

    def _prompt(self, inputs: Inputs, row: int) -> str:
        raw: bytes | None = inputs.scalar("input_type", row)
        if not raw:
            return self._manifest.default_prefix
        name = decoded_text(raw, "input_type")
        for alias in (name, *_ALIASES.get(name, ())):
            if alias in self._manifest.prompts:
                return self._manifest.prompts[alias]
        if name in _ALWAYS_ACCEPTED:
            return ""
        names = ", ".join(sorted({*_ALWAYS_ACCEPTED, *self._manifest.prompts}))
        raise RequestError(f"input_type is {name[:40]!r}; it must be one of {names}", "invalid_parameter")

    def _outputs(self, dimensions: int, rows: Any) -> dict[str, Any]:
        if dimensions < self._manifest.dimensions:
            rows = rows[:, :dimensions]
            if self._manifest.normalize:
                rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return {"embedding": np.ascontiguousarray(rows)}


class Classify(_RowTask):
    """`classify`: texts to a score for each label, with the default prompt before each."""

    column = True

    def __init__(self, manifest: EncoderDescription) -> None:
        super().__init__(manifest)
        self._activation = manifest.activation
        self._prefix = manifest.default_prefix
        self._labels = np.array([label.encode() for label in manifest.labels], dtype=np.object_)

    def read(self, inputs: Inputs) -> TextRequest:
        return _read_texts(inputs, self._outputs, lambda inputs, row: self._prefix)

    def _outputs(self, rows: Any) -> dict[str, Any]:
        scores = activated(rows, self._activation)
        return {"scores": scores, "logits": rows, "labels": np.tile(self._labels, (len(rows), 1))}


class Rerank(_RowTask):
    """`rerank`: a query and documents to a score for each document. The score of two classes is that of the second.

    Logits order the documents also where their scores are rounded to the same number.
    The default prompt goes before the query.
    """

    column = False

    def __init__(self, manifest: EncoderDescription) -> None:
        super().__init__(manifest)
        self._activation = manifest.activation
        self._prefix = manifest.default_prefix

    def read(self, inputs: Inputs) -> TextRequest:
        query = inputs.required("query").ravel()
        documents = inputs.required("documents").ravel().tolist()
        if query.size != 1:
            raise RequestError(f"query holds {query.size} texts; one is expected", "invalid_request")
        if not 1 <= len(documents) <= MAX_DOCUMENTS:
            raise RequestError(
                f"documents holds {len(documents)} texts; send 1 to {MAX_DOCUMENTS} in one request", "invalid_request"
            )
        truncate, priority = inputs.scalar("truncate", default=False), inputs.scalar("priority", default=0)
        asked = self._prefix + decoded_text(query.item(), "query")
        texts: list[PlainText | TokenIds | Clip | RequestError] = []
        for raw in documents:
            try:
                texts.append(PlainText(asked, truncate, decoded_text(raw, "the document")))
            except RequestError as error:
                texts.append(error)
        return TextRequest(texts, [priority] * len(texts), self._outputs, asked)

    def _outputs(self, rows: Any) -> dict[str, Any]:
        # Of two classes, the score rises with the difference.
        logits = rows[:, -1] if rows.shape[1] == 1 else rows[:, -1] - rows[:, 0]
        scores = activated(rows, self._activation)[:, -1]
        return {"scores": np.ascontiguousarray(scores), "logits": np.ascontiguousarray(logits)}


TASKS: dict[str, type[Embed] | type[Rerank] | type[Classify]] = {"embed": Embed, "rerank": Rerank, "classify": Classify}


def activated(logits: Any, activation: str) -> Any:
    """Return scores: float32 [texts, classes]. Raises ValueError for an unknown activation."""
    if activation == "none":
        return logits
    if activation == "sigmoid":
        return (np.tanh(logits * 0.5) * 0.5 + 0.5).astype(np.float32)  # does not overflow
    if activation != "softmax":
        raise ValueError(f"the activation {activation!r} is unknown")
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (exponents / exponents.sum(axis=1, keepdims=True)).astype(np.float32)


def _read_texts(inputs: Inputs, outputs: Outputs, prompt: Callable[[Inputs, int], str]) -> TextRequest:
    raw_texts, ids = inputs.array("text_input"), inputs.array("input_ids")
    if (raw_texts is None) == (ids is None):
        raise RequestError("send either text_input or input_ids", "invalid_request")
    texts: list[PlainText | TokenIds | Clip | RequestError] = []
    rows = range(len(raw_texts if ids is None else ids))
    for row in rows:
        truncate = inputs.scalar("truncate", row, False)
        try:
            if ids is None:
                text = decoded_text(inputs.scalar("text_input", row), "text_input")
                texts.append(PlainText(prompt(inputs, row) + text, truncate))
            else:
                texts.append(TokenIds(_ids(inputs, row), truncate))
        except RequestError as error:
            texts.append(error)
    return TextRequest(texts, [inputs.scalar("priority", row, 0) for row in rows], outputs)


def _ids(inputs: Inputs, row: int) -> Any:
    ids = inputs.row("input_ids", row).ravel()
    length = inputs.scalar("input_lengths", row, len(ids))
    if not 0 <= length <= len(ids):
        raise RequestError(
            f"input_lengths is {length}, and input_ids has {len(ids)} token ids; send a number up to that",
            "invalid_parameter",
        )
    return ids[:length]
