"""Parses the bodies of embeddings (OpenAI's), reranking (Cohere's and Jina's), classes (vLLM's) and translations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from inflight_client import InflightError
from inflight_client.encoder_call import TRANSLATE_OPTIONS, Task
from inflight_client.validation import is_int, shorten

from inflight.openai_api.errors import ApiError, errors_of
from inflight.openai_api.field_reader import FieldReader, read_body, whole
from inflight.openai_api.fields import CLASSIFY_FIELDS, EMBEDDING_FIELDS, MAX_TEXTS, RERANK_FIELDS, TEXT2TEXT_FIELDS
from inflight.openai_api.messages import checked_text, checked_token_ids
from inflight.openai_api.request import estimated_tokens

Texts = tuple[str, ...] | tuple[tuple[int, ...], ...]

PATHS: Mapping[Task, tuple[str, ...]] = {
    "embed": ("/v1/embeddings",),
    "rerank": ("/v1/rerank", "/v2/rerank", "/rerank"),
    "classify": ("/v1/classify", "/classify"),
    "text2text": ("/v1/translate",),
}
_TRUNCATE = {"NONE": False, "END": True}


@dataclass(frozen=True, kw_only=True)
class EncodingRequest:
    """What the requests for all encoders have. `model` None: the only one for the task."""

    model: str | None
    truncate: bool
    priority: int = 0
    return_errors: bool = False
    no_effect: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of texts."""
        raise NotImplementedError

    def estimated_tokens(self, max_seq_len: int | None) -> int:
        """Return the tokens that may be computed, `max_seq_len` of a text at most.

        Estimated from the lengths of the texts, as the exact number is known only later.
        """
        return sum(min(tokens, max_seq_len or tokens) for tokens in self._tokens())

    def _tokens(self) -> Iterator[int]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ClassifyRequest(EncodingRequest):
    texts: Texts

    @property
    def size(self) -> int:
        return len(self.texts)

    def _tokens(self) -> Iterator[int]:
        return (estimated_tokens(text) if isinstance(text, str) else len(text) for text in self.texts)


@dataclass(frozen=True, kw_only=True)
class EmbeddingRequest(ClassifyRequest):
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    input_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class Text2TextRequest(ClassifyRequest):
    """`options` are those of `Client.translate`."""

    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RerankRequest(EncodingRequest):
    """`documents` are the texts of `sent_documents`."""

    query: str
    documents: tuple[str, ...]
    sent_documents: Sequence[str | Mapping[str, Any]]
    top_n: int | None = None
    return_documents: bool = False
    max_tokens_per_doc: int | None = None

    @property
    def size(self) -> int:
        return len(self.documents)

    def _tokens(self) -> Iterator[int]:
        query = estimated_tokens(self.query)
        return (query + estimated_tokens(document) for document in self.documents)


def parse_encoding(task: Task, body: Any) -> EncodingRequest:
    """Parse the body of a request for an encoder. Raises ApiError, which names the field."""
    if task == "rerank":
        return _parse_rerank(body)
    if task == "text2text":
        return _parse_text2text(body)
    return parse_embedding(body) if task == "embed" else _parse_classify(body)


def parse_embedding(body: Any) -> EmbeddingRequest:
    """Parse the body of an embeddings request. Raises ApiError, which names the field."""
    reader = read_body(body, EMBEDDING_FIELDS)
    common = _common(reader)
    encoding: Any = reader.choice("encoding_format", "float")
    return EmbeddingRequest(
        **common,
        truncate=_truncate(reader),
        texts=_texts(reader.values.get("input"), common["return_errors"]),
        encoding_format=encoding,
        dimensions=reader.integer("dimensions"),
        input_type=reader.text("input_type") if "input_type" in reader.values else None,
    )


def _parse_classify(body: Any) -> ClassifyRequest:
    reader = read_body(body, CLASSIFY_FIELDS)
    common = _common(reader)
    texts = _texts(reader.values.get("input"), common["return_errors"])
    return ClassifyRequest(**common, truncate=_truncate(reader), texts=texts)


def _parse_text2text(body: Any) -> Text2TextRequest:
    reader = read_body(body, TEXT2TEXT_FIELDS)
    common = _common(reader)
    texts = _texts(reader.values.get("input"), common["return_errors"])
    if not isinstance(texts[0], str):
        raise ApiError("input has token ids; send texts", "invalid_parameter", "input")
    options = {name: reader.values[name] for name in TRANSLATE_OPTIONS if name in reader.values}
    return Text2TextRequest(**common, truncate=_truncate(reader), texts=texts, options=options)


def _parse_rerank(body: Any) -> RerankRequest:
    reader = read_body(body, RERANK_FIELDS)
    common = _common(reader)
    documents = reader.values.get("documents")
    if not isinstance(documents, list) or not documents:
        what = "the request has no documents" if not documents else f"documents is {shorten(documents)}"
        raise ApiError(f"{what}; set it to a list of texts", "invalid_request", "documents")
    _check_number("documents", documents)
    return RerankRequest(
        **common,
        top_n=reader.integer("top_n") or None,  # vLLM's clients send 0 for all
        truncate=reader.boolean("truncate", True),
        query=_query(reader),
        documents=tuple(_document(place, each, common["return_errors"]) for place, each in enumerate(documents)),
        sent_documents=documents,
        return_documents=reader.boolean("return_documents"),
        max_tokens_per_doc=reader.integer("max_tokens_per_doc"),
    )


def _common(reader: FieldReader) -> dict[str, Any]:
    return {
        "model": reader.text("model") if "model" in reader.values else None,
        "priority": reader.integer("priority") or 0,
        "return_errors": reader.boolean("return_errors"),
        "no_effect": reader.no_effect,
    }


def _truncate(reader: FieldReader) -> bool:
    """Return whether long texts are cut: NIM's clients send words, vLLM's a number of tokens."""
    tokens = reader.values.get("truncate_prompt_tokens")
    if tokens is not None and (not is_int(tokens) or tokens != -1):
        raise ApiError(
            f"truncate_prompt_tokens is {shorten(tokens)}; only -1, the model's limit, is supported",
            "unsupported_input",
            "truncate_prompt_tokens",
        )
    value = reader.values.get("truncate", tokens is not None)
    if isinstance(value, str) and value.upper() in _TRUNCATE:
        return _TRUNCATE[value.upper()]
    if not isinstance(value, bool):
        raise ApiError(
            f"truncate is {shorten(value)}; it must be true, false, NONE or END", "invalid_parameter", "truncate"
        )
    return value


def _texts(value: Any, allow_empty: bool) -> Texts:
    with errors_of("input"):
        if value is None:
            raise InflightError("the request has no input; set it to a text or a list of texts", "empty_prompt")
        if isinstance(value, str):
            return (_text("input", value, allow_empty),)
        if not isinstance(value, list):
            raise InflightError(
                f"input is {shorten(value)}; it must be a text, a list of texts, or token ids", "invalid_parameter"
            )
        if not value:
            raise InflightError("input is empty; send at least one text", "empty_prompt")
        if is_int(whole(value[0])):
            return (checked_token_ids("input", value),)
        _check_number("input", value)
        if isinstance(value[0], list):
            return tuple(checked_token_ids(f"input[{place}]", each) for place, each in enumerate(value))
        return tuple(_text(f"input[{place}]", each, allow_empty) for place, each in enumerate(value))


def _query(reader: FieldReader) -> str:
    with errors_of("query"):
        return _text("query", reader.text("query"), False)


def _document(place: int, value: Any, allow_empty: bool) -> str:
    name = f"documents[{place}]"
    text = value.get("text") if isinstance(value, Mapping) else value
    with errors_of("documents"):
        if not isinstance(text, str):
            raise InflightError(
                f"{name} is {shorten(value)}; it must be a text or an object with one", "invalid_parameter"
            )
        return _text(name, text, allow_empty)


def _text(name: str, value: Any, allow_empty: bool) -> str:
    """Return a text. An empty one is refused here, unless its error is to be returned beside other texts' values."""
    return "" if allow_empty and value == "" else checked_text(name, value)


def _check_number(name: str, values: Sequence[Any]) -> None:
    if len(values) > MAX_TEXTS:
        raise ApiError(f"{name} has {len(values)} texts; send at most {MAX_TEXTS:,}", "invalid_parameter", name)
