"""Rows that are requests of OpenAI's Batch format, and the lines of its output and error files.

A line is `{"id", "custom_id", "response": {"status_code", "request_id", "body"} | null, "error": {"code", "message"} |
null}` (`BatchRequestOutput`): a refused request is a response of 4xx with the reason in its body, and `error` is for
what never was an answer. All ids are made of the `custom_id`, so that every run of a job writes the same lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inflight_client import InflightError
from inflight_client.results import Generation
from inflight_client.values import shown

from inflight.batch.forms import openai_answer
from inflight.batch.forms.lines import dead, id_of, written
from inflight.batch.forms.openai_request import Defaults, RefusedError, ask_of
from inflight.batch.forms.plain import sampling_of
from inflight.batch.job import Defaults as JobDefaults
from inflight.batch.row import Fault, Kind, Outcome, Record, Row

_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"


class OpenAIForm:
    """A line without a usable `custom_id`, or for another url, is a dead letter; a body that asks for what can't be
    had gets an error line with status 400.
    """

    def __init__(self, defaults: JobDefaults, created: int) -> None:
        self._defaults = Defaults(defaults.max_tokens, sampling_of(defaults))
        self._created = created

    def row(self, number: int, record: Record) -> Row | Fault:
        values = record.values
        if values is None:
            return Fault(number, record.line, None, "row_invalid", record.fault)
        name = values.get("custom_id")
        if not isinstance(name, str) or id_of(name) is None:
            why = f"the custom_id is {shown(name)}; it must be a text of 1 to 512 characters"
            return Fault(number, record.line, None, "row_invalid", why if name is not None else "there is no custom_id")
        if why := _no_request(values):
            return Fault(number, record.line, name, "row_invalid", why)
        chat, body = values["url"] == _CHAT, values["body"]
        try:
            ask = ask_of(body, chat, self._defaults)
        except RefusedError as error:
            return Fault(number, record.line, name, error.code, str(error), Kind.ERROR, error.param)
        return Row(number, record.line, name, ask, chat)

    def answered(self, row: Row, answer: Generation, attempts: int) -> Outcome:
        name = _name(row.id)
        make = openai_answer.chat_body if row.about else openai_answer.text_body
        text = _line(row.id, name, 200, make(name, self._created, str(row.ask.model), answer, row.ask.log_probs))
        tokens = (answer.input_tokens or 0, answer.output_tokens or 0)
        return Outcome(row.number, row.line, row.id, Kind.OK, text, tokens=tokens, attempts=attempts)

    def failed(self, row: Row, error: InflightError, attempts: int) -> Outcome:
        if error.code == "row_kills_engine":
            return replace(dead(Fault(row.number, row.line, row.id, error.code, str(error))), attempts=attempts)
        outcome = self._refused(row, error.code, str(error), None)
        return replace(outcome, attempts=attempts)

    def faulty(self, fault: Fault) -> Outcome:
        if fault.kind is Kind.DEAD or fault.id is None:
            return dead(fault)
        return self._refused(fault, fault.code, fault.message, fault.about)

    def _refused(self, row: Row | Fault, code: str, message: str, param: str | None) -> Outcome:
        assert row.id is not None
        name = _name(row.id)
        if code in openai_answer.NO_ANSWER:
            text = written(
                {
                    "id": f"batch_req_{name}",
                    "custom_id": row.id,
                    "response": None,
                    "error": openai_answer.no_answer(message, code),
                }
            )
        else:
            status = openai_answer.STATUS.get(code, 400)
            text = _line(row.id, name, status, openai_answer.error_body(message, code, status, param))
        return Outcome(row.number, row.line, row.id, Kind.ERROR, text, code, message)


def _no_request(values: Mapping[str, Any]) -> str:
    """Why a line is no request that this form knows; empty if it is one."""
    if values.get("method") != "POST":
        return f"the method is {shown(values.get('method'))}; it must be 'POST'"
    if values.get("url") not in (_CHAT, _TEXT):
        return f"the url is {shown(values.get('url'))}; it must be {_CHAT} or {_TEXT}"
    if not isinstance(values.get("body"), Mapping):
        return f"the body is {shown(values.get('body'))}; it must be an object"
    return ""


def _name(custom_id: str) -> str:
    return hashlib.sha256(custom_id.encode()).hexdigest()[:24]


def _line(custom_id: str, name: str, status: int, body: dict[str, Any]) -> bytes:
    return written(
        {
            "id": f"batch_req_{name}",
            "custom_id": custom_id,
            "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
            "error": None,
        }
    )
