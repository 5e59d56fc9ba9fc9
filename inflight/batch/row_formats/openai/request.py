"""Parses the body of a request in OpenAI's format, parameter by parameter.

The parameters are those of OpenAI's `CreateChatCompletionRequest` and `CreateCompletionRequest`, and those that servers
of open models accept under the same names (`top_k`, `min_tokens`, `repetition_penalty`, `ignore_eos`,
`chat_template_kwargs`). Any other parameter is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from inflight_client import InflightError
from inflight_client.sampling import Guide, Sampling
from inflight_client.validation import check_int, invalid_value, shorten

from inflight.batch.job.rows import RowRequest
from inflight.batch.row_formats.prompt import checked_messages, checked_text

_SAMPLING = (
    *("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty"),
    *("top_k", "min_tokens", "repetition_penalty"),
)
_OWN = frozenset(("model", "messages", "max_tokens", "max_completion_tokens", "stop", "response_format", "logprobs"))
_OTHERS = frozenset(("prompt", "ignore_eos", "chat_template_kwargs"))
_IGNORED = frozenset(("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"))
"""Metadata about the request that does not affect the answer; accepted and ignored."""

_ACCEPTED_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "stream_options": (),
    "store": (False,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "parallel_tool_calls": (),
    "service_tier": ("auto", "default"),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "moderation": (),
}
"""Unsupported parameters, and the values that have no effect; null is always one of them."""

_KNOWN = frozenset(_SAMPLING) | _OWN | _OTHERS | _IGNORED | _ACCEPTED_VALUES.keys()
_CHAT_ONLY = frozenset(("messages", "response_format", "max_completion_tokens", "chat_template_kwargs", "top_logprobs"))
_TEXT_ONLY = frozenset(("prompt", "best_of", "echo", "suffix"))


class RejectedRequestError(Exception):
    """A request that is answered with 400, and the invalid parameter."""

    def __init__(self, message: str, code: str, param: str | None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class RequestDefaults(NamedTuple):
    """Values for requests that do not set their own."""

    max_tokens: int
    sampling: Sampling


def parse_request(body: Mapping[str, Any], chat: bool, defaults: RequestDefaults) -> RowRequest:
    """Parse a body. Raises RejectedRequestError."""
    given = {name: value for name, value in body.items() if value is not None}
    _check_names(given, chat)
    if not isinstance(given.get("model"), str):
        raise RejectedRequestError("the request has no model; set it to a text", "invalid_request", "model")
    param = "messages" if chat else "prompt"
    try:
        prompt = checked_messages(given.get("messages")) if chat else _prompt(given.get("prompt"))
        arguments = given.get("chat_template_kwargs", {})
        param = "chat_template_kwargs"
        if not isinstance(arguments, Mapping):
            raise invalid_value(param, arguments, "an object")
        param = "max_tokens"
        max_tokens = _max_tokens(given, defaults.max_tokens)
        param = "logprobs"
        log_probs = _log_probs(given.get("logprobs"), chat)
    except InflightError as error:
        raise RejectedRequestError(str(error), error.code, param) from None
    return RowRequest(prompt, max_tokens, _sampling(given, defaults.sampling), log_probs, arguments, given["model"])


def _check_names(given: Mapping[str, Any], chat: bool) -> None:
    """Raises RejectedRequestError for a parameter that is unknown, belongs to the other url, or is not supported."""
    elsewhere = _TEXT_ONLY if chat else _CHAT_ONLY
    for name, value in given.items():
        if name not in _KNOWN or name in elsewhere:
            raise RejectedRequestError(
                f"the parameter {name[:80]!r} is unknown; leave it out", "unsupported_input", name[:80]
            )
        if name in _ACCEPTED_VALUES and not any(
            value == each and type(value) is type(each) for each in _ACCEPTED_VALUES[name]
        ):
            raise RejectedRequestError(
                f"{name} is {shorten(value)}, which is not supported; leave it out", "unsupported_input", name
            )


def _prompt(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise InflightError("prompt must be one text; token ids and several prompts can't be sent", "unsupported_input")
    if value is None:
        raise InflightError("the request has no prompt; set it to a text", "empty_prompt")
    return checked_text("prompt", value)


def _max_tokens(given: Mapping[str, Any], default: int) -> int:
    """`max_completion_tokens` is the new name; if both are set, they must be equal."""
    old, new = given.get("max_tokens"), given.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InflightError("max_tokens and max_completion_tokens differ; give one of them", "invalid_parameter")
    value: Any = default if old is None and new is None else new if old is None else old
    check_int("max_tokens" if new is None else "max_completion_tokens", value, 1, 2**31 - 1)
    return int(value)


def _log_probs(value: Any, chat: bool) -> bool:
    """Only for the chosen tokens: true in a conversation, 0 for a text. Other tokens are not supported."""
    if value is None or value is False:
        return False
    if (chat and value is True) or (not chat and type(value) is int and value == 0):
        return True
    raise invalid_value("logprobs", value, "true or false" if chat else "0: only chosen tokens are supported")


def _sampling(given: Mapping[str, Any], base: Sampling) -> Sampling:
    changes: dict[str, Any] = {}
    for name in _SAMPLING:
        if name in given:
            changes[name] = given[name]
    if "stop" in given:
        changes["stop"] = given["stop"]
    if "ignore_eos" in given:
        if not isinstance(given["ignore_eos"], bool):
            raise RejectedRequestError("ignore_eos must be true or false", "invalid_parameter", "ignore_eos")
        changes["end_id"] = -1 if given["ignore_eos"] else None
    if "response_format" in given:
        changes["guide"] = _guide(given["response_format"])
    if not changes:
        return base
    try:
        return replace(base, **changes)
    except InflightError as error:
        param = next((name for name in changes if str(error).startswith(name)), None)
        raise RejectedRequestError(str(error), error.code, param) from None


def _guide(value: Any) -> Guide | None:
    """Parse a response format: type `text`, `json_object`, or `json_schema` with `{"json_schema": {"schema": {}}}`."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Guide("json")
    if kind == "json_schema":
        described = value.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        if isinstance(schema, Mapping) and schema:
            try:
                return Guide("json_schema", json.dumps(schema, ensure_ascii=False))
            except RecursionError:
                raise RejectedRequestError(
                    "the schema is nested too deep", "invalid_parameter", "response_format"
                ) from None
        raise RejectedRequestError(
            "response_format has no json_schema.schema, an object", "invalid_parameter", "response_format"
        )
    raise RejectedRequestError(
        f"response_format is {shorten(value)}; its type must be text, json_object or json_schema",
        "invalid_parameter",
        "response_format",
    )
