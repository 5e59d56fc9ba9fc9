"""Rows that are requests in OpenAI's Batch format, and the lines of its output and error files.

A line is `{"id", "custom_id", "response": {"status_code", "request_id", "body"} or null, "error": {"code", "message"}
or null}` (`BatchRequestOutput`): a refused request is a response of 4xx with the reason in its body, and `error` is for
rows without a response. All ids derive from the `custom_id`, so that every run of a job writes the same lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson
from inflight_client import InflightError
from inflight_client.call import CallOptions, TokenIds
from inflight_client.encoder_call import MODELS
from inflight_client.encodings import Embeddings
from inflight_client.results import Generation
from inflight_client.validation import shorten

from inflight.batch.job.rows import (
    Completion,
    EmbedRequest,
    GenerateRequest,
    InputRecord,
    InvalidRow,
    Row,
    RowAnswer,
    RowResult,
    RowStatus,
    answer_tokens,
)
from inflight.batch.job.spec import EncodeSpec, GenerationDefaults
from inflight.batch.row_formats.answer_check import answer_texts, asked_schema
from inflight.batch.row_formats.lines import dead_letter, dump_json, parse_id
from inflight.batch.row_formats.plain import sampling_from_defaults
from inflight.batch.row_formats.request_bodies import sampling_fields
from inflight.openai_api.encoding_request import EmbeddingRequest, parse_embedding
from inflight.openai_api.encoding_response import embedding_parts
from inflight.openai_api.errors import ApiError, error_body, status_of
from inflight.openai_api.request import GenerationRequest, RequestDefaults, parse_request
from inflight.openai_api.response import Choice, ResponseHead, finish_reason_of, response_body
from inflight.openai_api.schemas import enforceable
from inflight.openai_api.token_text import NAMELESS_TOKENS

_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"
_EMBEDDINGS = "/v1/embeddings"
_NO_RESPONSE_CODES = frozenset(
    (
        "answer_invalid",
        *("engine_died", "server_gone", "server_unreachable", "host_not_found", "connection_closed", "answer_damaged"),
        *("unsupported_deployment", "client_closed", "client_forked", "cancelled", "deadline_exceeded"),
        *("job_expired", "job_failed", "row_crashed_engine"),
    )
)
"""Codes of errors without a response from a server."""
_LINE_CODES = {"deadline_exceeded": "request_timeout", "cancelled": "batch_cancelled", "job_expired": "batch_expired"}
"""OpenAI's codes of lines without a response."""


class OpenAIRowFormat:
    """OpenAI's format. A line without a valid `custom_id`, or for another url, is a dead letter; a body with
    unsupported parameters gets an error line with status 400.

    With `encode`, whose task is embed, the lines are requests for embeddings. `vectors`: the output has a column of
    vectors, so each line has one text, and vectors of the job's size; the answers' lines have them as base64.
    `model`: the name in answers to requests for embeddings that name none. `passes_through`: bodies go to servers of
    OpenAI's protocol as they are, so that only what the job itself reads of them is checked. `scored`: the job asks for
    log probabilities, which are in the lines of rows that ask for them alone.
    """

    def __init__(
        self,
        defaults: GenerationDefaults,
        created: int,
        encode: EncodeSpec | None = None,
        vectors: bool = False,
        model: str = MODELS["embed"],
        passes_through: bool = False,
        scored: bool = False,
    ) -> None:
        self._passes_through, self._scored = passes_through, scored
        self._encode, self._vectors, self._model = encode, vectors, model
        self._urls = (_CHAT, _TEXT) if encode is None else (_EMBEDDINGS,)
        self._defaults = RequestDefaults(defaults.max_tokens, sampling_from_defaults(defaults))
        self._as_model = defaults.generation_config == "model"
        self._created = created

    def parse(self, number: int, record: InputRecord) -> Row | InvalidRow:
        values = record.values
        if values is None:
            return InvalidRow(number, record.line, None, "row_invalid", record.error)
        name = values.get("custom_id")
        if not isinstance(name, str) or parse_id(name) is None:
            why = f"the custom_id is {shorten(name)}; it must be a text of 1 to 512 characters"
            why = why if name is not None else "there is no custom_id"
            return InvalidRow(number, record.line, None, "row_invalid", why, context="custom_id")
        if invalid := _request_error(values, self._urls):
            param, why = invalid
            return InvalidRow(number, record.line, name, "row_invalid", why, context=param)
        chat, body = values["url"] == _CHAT, values["body"]
        try:
            if self._encode is not None:
                asked = parse_embedding(body)
                return Row(number, record.line, name, self._embed_request(asked, self._encode), asked)
            if self._passes_through:
                passed = _passed_request(_with_defaults(body, self._defaults), chat)
                return Row(number, record.line, name, passed, (chat, ()))
            parsed = parse_request(body, chat, self._defaults)
            request = _row_request(parsed, self._as_model)
            adapted = self._defaults.sampling.adapter is not None  # a body can't name an adapter
            request = replace(
                request,
                schema=enforceable(asked_schema(body))[0],
                body=None if adapted else _with_defaults(body, self._defaults),
            )
        except (ApiError, InflightError) as error:
            field = error.param if isinstance(error, ApiError) else None
            return InvalidRow(number, record.line, name, error.code, str(error), RowStatus.ERROR, field)
        return Row(number, record.line, name, request, (chat, parsed.no_effect))

    def format_answer(self, row: Row, answer: RowAnswer, attempts: int) -> RowResult:
        if isinstance(answer, Embeddings):
            return self._format_embeddings(row, answer, attempts)
        assert isinstance(row.request, GenerateRequest)
        assert isinstance(answer, Generation | Completion)
        name = _hashed_id(row.id)
        chat, no_effect = row.context
        head = ResponseHead(name, self._created, str(row.request.model), chat=chat)
        if isinstance(answer, Completion):
            choices = [_with_own_ids(choice, name, place) for place, choice in enumerate(answer.choices)]
            if self._scored and not _asks_scores(row.request):  # only the job's condition did
                choices = [{**choice, "logprobs": None} for choice in choices]
            body = {**head.fields(), "choices": choices, **answer.rest}
        else:
            choice = Choice(0, texts=[answer.text], finish_reason=finish_reason_of(answer.finish_reason, calls=False))
            if row.request.options.get("return_log_probs"):
                most = row.request.options.get("top_log_probs", 0)
                choice.logprobs = NAMELESS_TOKENS.logprobs(answer.token_ids, answer.log_probs or (), most)
            body = response_body(head, [choice], answer.usage)
        marks = {} if row.refinement is None else row.refinement.fields()
        text = _line(row.id, name, 200, body, no_effect, marks)
        empty = not any(text.strip() for text, _ in answer_texts(answer)) and not _calls(answer)
        return RowResult.of(row, RowStatus.OK, text, tokens=answer_tokens(answer), attempts=attempts, empty=empty)

    def _embed_request(self, parsed: EmbeddingRequest, encode: EncodeSpec) -> EmbedRequest:
        _refuse({"return_errors": parsed.return_errors, "priority": parsed.priority != 0})
        dimensions = parsed.dimensions or encode.dimensions
        if self._vectors and (len(parsed.texts) > 1 or dimensions != encode.dimensions):
            name = "dimensions" if len(parsed.texts) == 1 else "input"
            raise ApiError(
                f"{name} does not fit the output, which has one vector a row, of one size; send one text, and use the"
                " option --dimensions, or write JSON lines",
                "unsupported_input",
                name,
            )
        input_type, truncate = parsed.input_type or encode.input_type, parsed.truncate or encode.truncate
        return EmbedRequest(tuple(parsed.texts), input_type, dimensions, truncate, parsed.model)

    def _format_embeddings(self, row: Row, answer: Embeddings, attempts: int) -> RowResult:
        assert isinstance(row.request, EmbedRequest)
        parsed = replace(row.context, encoding_format="base64") if self._vectors else row.context
        body = b"".join(embedding_parts(answer, parsed, row.request.model or self._model))
        text = _line(row.id, _hashed_id(row.id), 200, orjson.Fragment(body))
        tokens = (answer.total_tokens, 0)
        return RowResult.of(row, RowStatus.OK, text, tokens=tokens, attempts=attempts, texts=len(answer))

    def format_failure(self, row: Row, error: InflightError, attempts: int) -> RowResult:
        if error.code == "row_crashed_engine":
            return dead_letter(row, error.code, str(error), attempts)
        return replace(self._format_rejected(row, error.code, str(error), None), attempts=attempts)

    def format_invalid(self, invalid: InvalidRow) -> RowResult:
        if invalid.status is RowStatus.DEAD or invalid.id is None:
            return dead_letter(invalid, invalid.code, invalid.message)
        return self._format_rejected(invalid, invalid.code, invalid.message, invalid.context)

    def _format_rejected(self, row: Row | InvalidRow, code: str, message: str, param: str | None) -> RowResult:
        assert row.id is not None
        name = _hashed_id(row.id)
        if code in _NO_RESPONSE_CODES:
            text = error_line(row.id, message, code)
        else:
            status = status_of(InflightError(message, code))
            text = _line(row.id, name, status, error_body(message, code, status, param))
        return RowResult.of(row, RowStatus.ERROR, text, code=code, message=message)


def _row_request(parsed: GenerationRequest, as_model: bool) -> GenerateRequest:
    """Return the request of a row, which has one prompt. Raises ApiError for what only the gateway supports."""
    prompt = parsed.prompts[0]
    several = len(parsed.prompts) > 1 or isinstance(prompt, TokenIds)
    _refuse({"prompt": several, "stream": parsed.stream, "echo": parsed.echo, "prompt_logprobs": parsed.scores_prompt})
    assert not isinstance(prompt, TokenIds)
    assert parsed.max_tokens is not None
    options = CallOptions()
    if parsed.logprobs:
        options["return_log_probs"] = True
    if parsed.top_logprobs:
        options["top_log_probs"] = parsed.top_logprobs
    if parsed.chat_template_kwargs:
        options["chat_template_kwargs"] = parsed.chat_template_kwargs
    request = GenerateRequest(prompt, parsed.max_tokens, parsed.sampling, options, parsed.model, as_model)
    return replace(request, n=parsed.n, tools=parsed.tools, chat=parsed.chat)


def _with_defaults(body: Mapping[str, Any], defaults: RequestDefaults) -> dict[str, Any]:
    """Return a body with the job's values for fields that it does not set."""
    given = {name: value for name, value in body.items() if value is not None}
    if "max_tokens" not in given and "max_completion_tokens" not in given:
        given["max_tokens"] = defaults.max_tokens
    return sampling_fields(defaults.sampling) | given


def _passed_request(body: Mapping[str, Any], chat: bool) -> GenerateRequest:
    """Return the request of a row that goes to a server as it is. Raises InflightError."""
    _refuse({"stream": bool(body.get("stream"))})
    name, kind = ("messages", list) if chat else ("prompt", str)
    if not isinstance(prompt := body.get(name), kind) or not prompt:
        wanted = "a list of messages" if chat else "a text"
        raise ApiError(f"{name} is {shorten(prompt)}; it must be {wanted}", "invalid_parameter", name)
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    if not isinstance(most, int):
        raise ApiError(f"max_tokens is {shorten(most)}; it must be a whole number", "invalid_parameter", "max_tokens")
    model = str(body["model"]) if body.get("model") else None
    return GenerateRequest(prompt, most, model=model, chat=chat, schema=asked_schema(body), body=body)


def _with_own_ids(choice: Mapping[str, Any], name: str, place: int) -> Mapping[str, Any]:
    """Return a choice whose calls have ids that are the same in each run."""
    message = choice.get("message")
    if not isinstance(message, Mapping) or not message.get("tool_calls"):
        return choice
    ids = (f"call_{name[:16]}{place:02x}{number}" for number in range(len(message["tool_calls"])))
    calls = [{**call, "id": id_} for call, id_ in zip(message["tool_calls"], ids, strict=True)]
    return {**choice, "message": {**message, "tool_calls": calls}}


def _asks_scores(request: GenerateRequest) -> bool:
    """Return whether the row itself asks for log probabilities; 0 asks for those of the tokens alone."""
    asked = (request.body or {}).get("logprobs")
    return bool(request.options.get("return_log_probs")) or not (asked is None or asked is False)


def _calls(answer: Generation | Completion) -> bool:
    """Return whether a choice of an answer calls tools."""
    return isinstance(answer, Completion) and len(answer_texts(answer)) < len(answer.choices)


def _refuse(asked: Mapping[str, bool]) -> None:
    """Raises ApiError for a field that was asked for, which only the gateway supports."""
    for name, is_asked in asked.items():
        if is_asked:
            raise ApiError(f"{name} is not supported in a batch job; leave it out", "unsupported_input", name)


def error_line(custom_id: str, message: str, code: str) -> bytes:
    """Return the line of a row without a response."""
    name, error = _hashed_id(custom_id), {"code": _LINE_CODES.get(code, code), "message": message}
    return dump_json({"id": f"batch_req_{name}", "custom_id": custom_id, "response": None, "error": error})


def _request_error(values: Mapping[str, Any], urls: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the invalid field and why, if a line is not a supported request."""
    if values.get("method") != "POST":
        return "method", f"the method is {shorten(values.get('method'))}; it must be 'POST'"
    if values.get("url") not in urls:
        hint = "; give the job the option --task embed" if values.get("url") == _EMBEDDINGS else ""
        return "url", f"the url is {shorten(values.get('url'))}; it must be {' or '.join(urls)}{hint}"
    if not isinstance(values.get("body"), Mapping):
        return "body", f"the body is {shorten(values.get('body'))}; it must be an object"
    return None


def _hashed_id(custom_id: str) -> str:
    return hashlib.sha256(custom_id.encode()).hexdigest()[:24]


def _line(
    custom_id: str,
    name: str,
    status: int,
    body: dict[str, Any] | orjson.Fragment,
    no_effect: Sequence[str] = (),
    marks: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Return a line of the output; `no_effect` names what the gateway's header of that name does."""
    response = {"status_code": status, "request_id": f"req_{name}", "body": body, **marks}
    if no_effect:
        response["no_effect"] = no_effect
    return dump_json({"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": None})
