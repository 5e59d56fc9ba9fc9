"""Rows with a text to embed or classify, or with a query and documents to rerank."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import orjson
from inflight_client import InflightError
from inflight_client.encodings import Classifications, Embeddings, Reranking
from inflight_client.validation import shorten

from inflight.batch.job.rows import ClassifyRequest, EmbedRequest, RerankRequest, RowAnswer, RowRequest
from inflight.batch.job.spec import EncodeSpec, InputSpec
from inflight.batch.row_formats.plain import PlainRowFormat
from inflight.openai_api.messages import checked_text

if TYPE_CHECKING:
    from inflight_client.encodings import Vectors


class EncodeRowFormat(PlainRowFormat):
    """The text of a row, or its query, is a column or the template's. Documents are a list, or JSON in a text.

    `compact`: vectors are written as base64 of their float32 values (little endian), which is smaller and faster to
    read than numbers; for outputs that are made of the job's lines.
    """

    def __init__(self, spec: InputSpec, encode: EncodeSpec, compact: bool) -> None:
        super().__init__(spec, encode.task)
        self._encode, self._compact = encode, compact

    def columns(self, there: Collection[str]) -> set[str]:
        return super().columns(there) | ({self._encode.documents} if self._encode.task == "rerank" else set())

    def request(self, values: Mapping[str, Any]) -> RowRequest:
        encode = self._encode
        if self._template is not None:
            text = checked_text("the template's text", self._template.render(values))
        elif self._prompt in values:
            text = checked_text(self._prompt, values[self._prompt])
        else:
            names = ", ".join(map(str, list(values)[:20]))[:200]
            raise InflightError(f"the row has no {self._prompt!r}, but {names}", "row_invalid")
        if encode.task == "embed":
            return EmbedRequest((text,), encode.input_type, encode.dimensions, encode.truncate)
        if encode.task == "classify":
            return ClassifyRequest(text, encode.truncate)
        return RerankRequest(text, _documents(encode.documents, values.get(encode.documents)), encode.truncate)

    def answer_values(self, answer: RowAnswer) -> tuple[dict[str, Any], tuple[int, int], int]:
        if isinstance(answer, Embeddings):
            fields = {"embedding": encoded_vector(answer.vectors[0]) if self._compact else answer.vectors[0]}
        elif isinstance(answer, Classifications):
            (top,) = answer
            fields = {"label": top.label, "score": top.score, "scores": top.scores}
        else:
            assert isinstance(answer, Reranking)
            fields = {"scores": answer.scores, "ranking": [document.index for document in answer.results]}
        tokens = answer.total_tokens
        fields |= {"input_tokens": tokens, "truncated": any(answer.truncated)}
        return fields, (tokens, 0), len(answer.input_tokens)


def encoded_vector(vector: Vectors) -> str:
    """Return a vector as OpenAI's `encoding_format` base64."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


def _documents(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise InflightError(f"{name} is a text but not a JSON list", "row_invalid") from None
    if not isinstance(value, list | tuple) or not value:
        raise InflightError(f"{name} is {shorten(value)}; it must be a list with at least one text", "row_invalid")
    return tuple(checked_text(f"{name}[{place}]", document) for place, document in enumerate(value))
