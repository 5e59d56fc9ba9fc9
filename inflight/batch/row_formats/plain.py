"""Rows of values: a prompt, a conversation, values for a template, texts to embed or classify, documents to rerank."""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import orjson
from inflight_client import InflightError
from inflight_client.call import CallOptions
from inflight_client.encodings import Classifications, Embeddings, Reranking, Translations
from inflight_client.results import Generation
from inflight_client.sampling import Sampling
from inflight_client.validation import check_int, shorten

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import (
    ClassifyRequest,
    EmbedRequest,
    GenerateRequest,
    InputRecord,
    InvalidRow,
    RerankRequest,
    Row,
    RowAnswer,
    RowRequest,
    RowResult,
    RowStatus,
)
from inflight.batch.job.spec import TOKENS, EncodeSpec, GenerationDefaults, InputSpec, Task
from inflight.batch.outputs.answer_record import ANSWER_FIELDS
from inflight.batch.row_formats.lines import column_names, dead_letter, decode_binary, dump_json, parse_id, to_json
from inflight.batch.row_formats.template import Template
from inflight.openai_api.errors import ApiError
from inflight.openai_api.field_reader import whole
from inflight.openai_api.messages import checked_messages, checked_text
from inflight.openai_api.response_format import schema_guide

_SAMPLING = (
    *("temperature", "top_k", "top_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_p", "min_tokens", "stop", "adapter"),
)
_OVERRIDES = frozenset(("max_tokens", "ignore_eos", *_SAMPLING))
_MAX_INT32 = 2**31 - 1
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in JSON: after an even number of backslashes."""


class PlainRowFormat(ABC):
    """Plain rows. An invalid row becomes a dead letter. Answers have the row's id and the kept columns."""

    keeps_nul = True
    """Whether the output can store NUL characters of kept columns; databases can't."""

    def __init__(self, spec: InputSpec, task: Task, own: Collection[str] = ()) -> None:
        """`own`: names of the answers' values besides those of the task."""
        self._id, self._prompt, self._keep = spec.id, spec.prompt, spec.keep
        self._template = Template(spec.template) if spec.template is not None else None
        for name in spec.keep:
            if name in (*ANSWER_FIELDS[task], *own) and name != spec.id:
                raise BatchError(
                    f"the column {name!r} can't be kept: the answers have a value with that name; rename the column",
                    "input_invalid",
                )

    @abstractmethod
    def request(self, values: Mapping[str, Any]) -> RowRequest:
        """Return a row's request. Raises InflightError."""

    @abstractmethod
    def answer_values(self, answer: RowAnswer) -> tuple[dict[str, Any], tuple[int, int], int]:
        """Return an answer's values by field, its input and output tokens, and its texts."""

    def parse(self, number: int, record: InputRecord) -> Row | InvalidRow:
        if record.values is None:
            return InvalidRow(number, record.line, None, "row_invalid", record.error)
        try:
            values = decode_binary(record.values)
        except RecursionError:
            return InvalidRow(number, record.line, None, "row_invalid", "the row is nested too deeply")
        id_ = number + 1 if self._id is None else parse_id(values.get(self._id))
        if id_ is None:
            return InvalidRow(number, record.line, None, "row_invalid", self._id_error(values))
        try:
            request, kept = self.request(values), self._kept_columns(record.values)
        except InflightError as error:
            return InvalidRow(number, record.line, str(id_), error.code, str(error))
        return Row(number, record.line, str(id_), request, (id_, kept))

    def format_answer(self, row: Row, answer: RowAnswer, attempts: int) -> RowResult:
        id_, kept = row.context
        fields, tokens, texts = self.answer_values(answer)
        line = {"id": id_, **fields}
        if kept:
            line.update(kept)
        if row.refinement is not None:
            line.update(row.refinement.fields())
        empty = isinstance(answer, Generation) and not answer.text.strip()
        text = dump_json(line)
        return RowResult.of(row, RowStatus.OK, text, tokens=tokens, attempts=attempts, texts=texts, empty=empty)

    def format_failure(self, row: Row, error: InflightError, attempts: int) -> RowResult:
        if error.code == "row_crashed_engine":
            return dead_letter(row, error.code, str(error), attempts)
        line = {"id": row.context[0], "line": row.line, "code": error.code, "message": str(error)}
        values = {"code": error.code, "message": str(error), "attempts": attempts}
        return RowResult.of(row, RowStatus.ERROR, dump_json(line), **values)

    def format_invalid(self, invalid: InvalidRow) -> RowResult:
        return dead_letter(invalid, invalid.code, invalid.message)

    def columns(self, there: Collection[str]) -> set[str]:
        """Return the columns that every row must have, given the `there` columns of all rows."""
        needed = {*self._keep} | ({self._id} if self._id is not None else set())
        return needed | (self._template.columns if self._template is not None else {self._prompt})

    def _source(self, values: Mapping[str, Any]) -> tuple[str, Any]:
        """Return a name for messages, and the template's text or the row's column. Raises InflightError."""
        if self._template is not None:
            return "the template's text", self._template.render(values)
        if self._prompt not in values:
            raise InflightError(f"the row has no {self._prompt!r}, but {column_names(values)}", "row_invalid")
        return self._prompt, values[self._prompt]

    def _kept_columns(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        if not self._keep:
            return None
        try:
            kept = {name: to_json(values.get(name)) for name in self._keep if name != self._id}
            text = dump_json(kept)
        except (orjson.JSONEncodeError, RecursionError) as error:
            raise InflightError(f"a column to keep can't be written as JSON: {error}", "row_invalid") from None
        if not self.keeps_nul and _NUL.search(text):
            raise InflightError(
                "a column to keep contains a NUL character, which a database can't store; remove it", "row_invalid"
            )
        return kept

    def _id_error(self, values: Mapping[str, Any]) -> str:
        value = values.get(str(self._id))
        if value is None:
            return f"the row has no id: its column {self._id!r} is missing or null"
        return f"the id is {shorten(value)}; it must be a text of 1 to 512 characters, or a whole number of 64 bits"


class GenerateRowFormat(PlainRowFormat):
    """Prompts and conversations.

    With `overrides`, columns with the names of sampling parameters set them for their row, except columns that the
    template uses.
    """

    def __init__(
        self, spec: InputSpec, defaults: GenerationDefaults, overrides: bool = True, own: Collection[str] = ()
    ) -> None:
        self._top = defaults.top_log_probs
        own = (*own, TOKENS) if self._top is not None else own
        super().__init__(spec, "generate", (*own, *defaults.answer_properties))
        self._system = Template(spec.system, "the system message") if spec.system is not None else None
        self._chat = spec.chat or spec.system is not None
        self._max_tokens, self._sampling = defaults.max_tokens, sampling_from_defaults(defaults)
        self._as_model = defaults.generation_config == "model"
        self._as_chat = self._as_model and not spec.raw and not self._chat
        self._schema, self._properties = defaults.answer_schema, defaults.answer_properties
        if self._schema is not None:
            try:
                guide = schema_guide(self._schema, "the schema")
            except ApiError as error:
                raise BatchError(str(error), "input_invalid") from None
            self._sampling = replace(self._sampling, guide=guide)
            if shared := {*ANSWER_FIELDS["generate"], *own}.intersection(self._properties):
                raise BatchError(
                    f"the schema has the property {min(shared)!r}, and each answer has a value with that name; rename"
                    " the property",
                    "input_invalid",
                )
        if self._template is not None and self._template.is_constant:
            raise BatchError(
                "the template names no column, so all rows would have the same prompt; write {{ name }} for the value"
                " of the column name",
                "input_invalid",
            )
        taken = self._template.columns if self._template else frozenset((spec.prompt,))
        if self._system is not None:
            taken = taken | self._system.columns
        self._overrides = _OVERRIDES - taken if overrides else frozenset()

    def columns(self, there: Collection[str]) -> set[str]:
        needed = super().columns(there) | (self._system.columns if self._system else set())
        if self._template is None and "messages" in there and self._prompt not in there:
            return needed - {self._prompt} | {"messages"}
        return needed

    def answer_values(self, answer: RowAnswer) -> tuple[dict[str, Any], tuple[int, int], int]:
        assert isinstance(answer, Generation)
        fields: dict[str, Any] = {
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
        }
        if self._top is not None:
            fields[TOKENS] = _tokens(answer)
        if self._properties:
            values = orjson.loads(answer.text)  # it matches the schema
            fields |= {name: values.get(name) if isinstance(values, dict) else None for name in self._properties}
        return fields, (answer.input_tokens or 0, answer.output_tokens or 0), 0

    def request(self, values: Mapping[str, Any]) -> RowRequest:
        prompt = self._prompt_of(values)
        if self._overrides.isdisjoint(values):
            return self._generate(prompt, self._max_tokens, self._sampling)
        overrides = {name: values[name] for name in self._overrides.intersection(values) if values[name] is not None}
        max_tokens = whole(overrides.pop("max_tokens", self._max_tokens))
        check_int("max_tokens", max_tokens, 1, _MAX_INT32)
        ignore_eos = overrides.pop("ignore_eos", None)
        if ignore_eos is not None:
            if not isinstance(ignore_eos, bool):
                raise InflightError(
                    f"ignore_eos is {shorten(ignore_eos)}; it must be true or false", "invalid_parameter"
                )
            overrides["end_id"] = -1 if ignore_eos else None
        return self._generate(prompt, max_tokens, replace(self._sampling, **overrides) if overrides else self._sampling)

    def _generate(self, prompt: str | list[dict[str, Any]], max_tokens: int, sampling: Sampling) -> GenerateRequest:
        as_chat = self._as_chat and isinstance(prompt, str)
        options = CallOptions()
        if self._top is not None:
            options |= CallOptions(return_token_ids=True, return_log_probs=True, top_log_probs=self._top)
        return GenerateRequest(
            prompt, max_tokens, sampling, options, as_model=self._as_model, as_chat=as_chat, schema=self._schema
        )

    def _prompt_of(self, values: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        if self._template is not None:
            text = checked_text("the template's text", self._template.render(values))
        elif self._prompt in values:
            if "messages" in values and self._prompt != "messages":
                raise InflightError(f"the row has {self._prompt!r} and 'messages'; give one of them", "row_invalid")
            if self._prompt == "messages":
                return self._conversation(values["messages"], values)
            text = checked_text(self._prompt, values[self._prompt])
        elif "messages" in values:
            return self._conversation(values["messages"], values)
        else:
            names = column_names(values)
            raise InflightError(f"the row has neither {self._prompt!r} nor 'messages', but {names}", "row_invalid")
        if not self._chat:
            return text
        return [*self._system_message(values), {"role": "user", "content": text}]

    def _conversation(self, value: Any, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Parse a column's messages, which are JSON in a text if the format has no lists."""
        if isinstance(value, str):
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError:
                raise InflightError(
                    "messages is a text but not valid JSON; it must be a list", "invalid_messages"
                ) from None
        messages = checked_messages(value)
        if self._system is not None and messages[0]["role"] != "system":
            messages[:0] = self._system_message(values)
        return messages

    def _system_message(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self._system is None:
            return []
        return [{"role": "system", "content": checked_text("the system message", self._system.render(values))}]


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
        encode, text = self._encode, checked_text(*self._source(values))
        if encode.task == "embed":
            return EmbedRequest((text,), encode.input_type, encode.dimensions, encode.truncate)
        if encode.task == "text2text":
            named = {name: values[name] for name in ("target_language", "source_language") if values.get(name)}
            return encode.translate_request(text, {name: checked_text(name, each) for name, each in named.items()})
        if encode.task == "classify":
            return ClassifyRequest(text, encode.truncate)
        return RerankRequest(text, _documents(encode.documents, values.get(encode.documents)), encode.truncate)

    def answer_values(self, answer: RowAnswer) -> tuple[dict[str, Any], tuple[int, int], int]:
        if isinstance(answer, Embeddings):
            vector: Any = answer.vectors[0]
            if self._compact:  # OpenAI's `encoding_format` base64
                vector = base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
            fields = {"embedding": vector}
        elif isinstance(answer, Classifications):
            (top,) = answer
            fields = {"label": top.label, "score": top.score, "scores": top.scores}
        elif isinstance(answer, Translations):
            written = sum(answer.output_tokens)
            (reason,) = answer.finish_reasons
            fields = {"text": answer[0], "finish_reason": reason, "output_tokens": written}
            fields["input_tokens"] = answer.total_tokens
            return fields | {"truncated": any(answer.truncated)}, (answer.total_tokens, written), 1
        else:
            assert isinstance(answer, Reranking)
            fields = {"scores": answer.scores, "ranking": [document.index for document in answer.results]}
        tokens = answer.total_tokens
        fields |= {"input_tokens": tokens, "truncated": any(answer.truncated)}
        return fields, (tokens, 0), len(answer.input_tokens)


def _tokens(answer: Generation) -> list[tuple[int, float, dict[str, float]]]:
    ids, log_probs = answer.token_ids or (), answer.log_probs or ()
    return [
        (id_, float(each), {str(other): value for other, value in each.top.items()})
        for id_, each in zip(ids, log_probs, strict=False)
    ]


def _documents(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise InflightError(f"{name} is a text but not a JSON list", "row_invalid") from None
    if not isinstance(value, list | tuple) or not value:
        raise InflightError(f"{name} is {shorten(value)}; it must be a list with at least one text", "row_invalid")
    return tuple(checked_text(f"{name}[{place}]", document) for place, document in enumerate(value))


def sampling_from_defaults(defaults: GenerationDefaults) -> Sampling:
    """Return the sampling for rows that do not set their own. Raises BatchError `input_invalid`."""
    parameters = {name: getattr(defaults, name) for name in _SAMPLING}
    try:
        return Sampling(**parameters, end_id=-1 if defaults.ignore_eos else None)
    except InflightError as error:
        raise BatchError(str(error), "input_invalid") from None
