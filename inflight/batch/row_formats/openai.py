"""Rows that are requests in OpenAI's Batch format, and the lines of its output and error files.

A line is `{"id", "custom_id", "response": {"status_code", "request_id", "body"} or null, "error": {"code", "message"}
or null}` (`BatchRequestOutput`): a refused request is a response of 4xx with the reason in its body, and `error` is for
rows without a response. All ids derive from the `custom_id`, so that every run of a job writes the same lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inflight_client import InflightError
from inflight_client.results import Generation
from inflight_client.validation import shorten

from inflight.batch.job.rows import InputRecord, InvalidRow, Row, RowRequest, RowResult, RowStatus
from inflight.batch.job.spec import GenerationDefaults
from inflight.batch.row_formats.lines import dead_letter, dump_json, parse_id
from inflight.batch.row_formats.plain import sampling_from_defaults
from inflight.openai_api.errors import ApiError, error_body, status_of
from inflight.openai_api.request import GenerationRequest, RequestDefaults, TokenIds, parse_request
from inflight.openai_api.response import Choice, ResponseHead, finish_reason_of, response_body
from inflight.openai_api.token_text import unknown_logprobs

_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"
_NO_RESPONSE_CODES = frozenset(
    (
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
    """

    def __init__(self, defaults: GenerationDefaults, created: int) -> None:
        self._defaults = RequestDefaults(defaults.max_tokens, sampling_from_defaults(defaults))
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
        if invalid := _request_error(values):
            param, why = invalid
            return InvalidRow(number, record.line, name, "row_invalid", why, context=param)
        chat, body = values["url"] == _CHAT, values["body"]
        try:
            request = _row_request(parse_request(body, chat, self._defaults))
        except ApiError as error:
            return InvalidRow(number, record.line, name, error.code, str(error), RowStatus.ERROR, error.param)
        return Row(number, record.line, name, request, chat)

    def format_answer(self, row: Row, answer: Generation, attempts: int) -> RowResult:
        name = _hashed_id(row.id)
        head = ResponseHead(name, self._created, str(row.request.model), chat=row.context)
        choice = Choice(0, [answer.text], finish_reason=finish_reason_of(answer.finish_reason, calls=False))
        if row.request.log_probs:
            choice.logprobs = unknown_logprobs(answer.token_ids, answer.log_probs or ())
        text = _line(row.id, name, 200, response_body(head, [choice], answer.usage))
        tokens = (answer.input_tokens or 0, answer.output_tokens or 0)
        return RowResult(row.number, row.line, row.id, RowStatus.OK, text, tokens=tokens, attempts=attempts)

    def format_failure(self, row: Row, error: InflightError, attempts: int) -> RowResult:
        if error.code == "row_crashed_engine":
            return replace(
                dead_letter(InvalidRow(row.number, row.line, row.id, error.code, str(error))), attempts=attempts
            )
        outcome = self._format_rejected(row, error.code, str(error), None)
        return replace(outcome, attempts=attempts)

    def format_invalid(self, invalid: InvalidRow) -> RowResult:
        if invalid.status is RowStatus.DEAD or invalid.id is None:
            return dead_letter(invalid)
        return self._format_rejected(invalid, invalid.code, invalid.message, invalid.context)

    def _format_rejected(self, row: Row | InvalidRow, code: str, message: str, param: str | None) -> RowResult:
        assert row.id is not None
        name = _hashed_id(row.id)
        if code in _NO_RESPONSE_CODES:
            text = error_line(row.id, message, code)
        else:
            status = status_of(InflightError(message, code))
            text = _line(row.id, name, status, error_body(message, code, status, param))
        return RowResult(row.number, row.line, row.id, RowStatus.ERROR, text, code, message)


def _row_request(wanted: GenerationRequest) -> RowRequest:
    """Return the request of a row, which gets one answer. Raises ApiError for what only the gateway supports."""
    prompt = wanted.prompts[0]
    several = {"n": wanted.n > 1, "prompt": len(wanted.prompts) > 1 or isinstance(prompt, TokenIds)}
    unsupported = several | {"stream": wanted.stream, "echo": wanted.echo, "tools": wanted.tools.active}
    for name, asked in unsupported.items():
        if asked:
            raise ApiError(f"{name} is not supported in a batch job; leave it out", "unsupported_input", name)
    assert not isinstance(prompt, TokenIds)
    assert wanted.max_tokens is not None
    return RowRequest(
        prompt, wanted.max_tokens, wanted.sampling, wanted.logprobs, wanted.chat_template_kwargs, wanted.model
    )


def error_line(custom_id: str, message: str, code: str) -> bytes:
    """Return the line of a row without a response."""
    name, error = _hashed_id(custom_id), {"code": _LINE_CODES.get(code, code), "message": message}
    return dump_json({"id": f"batch_req_{name}", "custom_id": custom_id, "response": None, "error": error})


def _request_error(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the invalid field and why, if a line is not a supported request."""
    if values.get("method") != "POST":
        return "method", f"the method is {shorten(values.get('method'))}; it must be 'POST'"
    if values.get("url") not in (_CHAT, _TEXT):
        return "url", f"the url is {shorten(values.get('url'))}; it must be {_CHAT} or {_TEXT}"
    if not isinstance(values.get("body"), Mapping):
        return "body", f"the body is {shorten(values.get('body'))}; it must be an object"
    return None


def _hashed_id(custom_id: str) -> str:
    return hashlib.sha256(custom_id.encode()).hexdigest()[:24]


def _line(custom_id: str, name: str, status: int, body: dict[str, Any]) -> bytes:
    return dump_json(
        {
            "id": f"batch_req_{name}",
            "custom_id": custom_id,
            "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
            "error": None,
        }
    )
