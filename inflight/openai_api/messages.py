"""Validates prompts and conversations before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight_client import InflightError
from inflight_client.validation import check_utf8, shorten

from inflight.openai_api.field_reader import whole

_MAX_DEPTH = 60
"""Maximum nesting of a message's values, slightly below the client's."""


def checked_text(name: str, value: Any, *, empty: bool = False) -> str:
    """Validate a text prompt, which may be `empty`. Raises InflightError `invalid_text`, `empty_prompt`."""
    if not isinstance(value, str):
        raise InflightError(f"{name} is {shorten(value)}; it must be a text", "invalid_text")
    if not value and not empty:
        raise InflightError(f"{name} is empty; send at least one character", "empty_prompt")
    if "\0" in value:
        raise InflightError(f"{name} contains a NUL character; remove it", "invalid_text")
    if not value.isascii():
        check_utf8(name, value)
    return value


def checked_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Validate a prompt of token ids. Raises InflightError `invalid_token_ids`, `empty_prompt`."""
    if isinstance(value, list):
        value = [whole(each) for each in value]
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < 2**31 for each in value):
        raise InflightError(
            f"{name} is {shorten(value)}; its token ids must be whole numbers from 0 on", "invalid_token_ids"
        )
    if not value:
        raise InflightError(f"{name} has no token ids; send at least one", "empty_prompt")
    return tuple(value)


_NOT_WRITTEN = ("refusal", "reasoning", "thinking", "redacted_thinking")
"""Parts of answers that are none of their text."""


def checked_messages(value: Any) -> list[dict[str, Any]]:
    """Validate a conversation. Raises InflightError `invalid_messages`, `unsupported_input`.

    Text parts are joined with line ends to one text, as most chat templates expect (and as vLLM does); the role
    `developer` becomes `system`, its name in the templates of open models.
    """
    if not isinstance(value, list | tuple):
        raise InflightError(f"messages is {shorten(value)}; it must be a list of messages", "invalid_messages")
    if not value:
        raise InflightError("messages is empty; send at least one", "invalid_messages")
    return [_message(place, message) for place, message in enumerate(value)]


def _message(place: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InflightError(f"messages[{place}] is {shorten(message)}; each must be an object", "invalid_messages")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InflightError(f"messages[{place}] has no role; give it system, user or assistant", "invalid_messages")
    if not isinstance(content, str):
        content = _content(place, message)
    if role == "assistant":  # what a model once wrote
        message, content = _without_nul(message), content.replace("\0", "")
    if "\0" in content:
        raise InflightError(f"messages[{place}] contains a NUL character; remove it", "invalid_text")
    if not content.isascii():
        check_utf8(f"messages[{place}]", content)
    if message.keys() == {"role", "content"}:
        return {"role": "system" if role == "developer" else role, "content": content}
    for name, each in message.items():
        if name not in ("role", "content"):
            _check((f"messages[{place}]", name), each, 0)
    # If each message in a table has all columns, null means that the message lacks the value; so does an empty list
    # of calls.
    others = {
        name: each
        for name, each in sorted(message.items())  # a template that shows whole messages shows them all alike
        if each is not None and not (name == "tool_calls" and each == [])
    }
    return {**others, "role": "system" if role == "developer" else role, "content": content}


def _without_nul(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "")
    if depth > _MAX_DEPTH or not isinstance(value, Mapping | list):
        return value
    if isinstance(value, list):
        return [_without_nul(each, depth + 1) for each in value]
    return {name: _without_nul(each, depth + 1) for name, each in value.items()}


def _content(place: int, message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        return ""
    if not isinstance(content, list):
        raise InflightError(
            f"the content of messages[{place}] is {shorten(content)}; it must be a text", "invalid_messages"
        )
    texts = []
    answered = message.get("role") == "assistant"
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if answered and kind in _NOT_WRITTEN:
            continue
        if kind != "text" and not (answered and kind == "output_text"):
            raise InflightError(
                f"the content of messages[{place}] has a part of type {shorten(kind)}; only text can be sent",
                "unsupported_input",
            )
        if not isinstance(part.get("text"), str):
            raise InflightError(f"a part of messages[{place}] has no text", "invalid_messages")
        texts.append(part["text"])
    return "\n".join(texts)


def _check(where: tuple[Any, ...], value: Any, depth: int) -> None:
    """Validate values that only the template reads: their depth, and their texts. `where` has the names above them."""
    if isinstance(value, str):
        if not value.isascii():
            check_utf8(_path(where), value)
        if "\0" in value:
            raise InflightError(f"{_path(where)} contains a NUL character; remove it", "invalid_text")
    elif depth > _MAX_DEPTH:
        raise InflightError(f"{_path(where)} is nested more than {_MAX_DEPTH} levels deep", "invalid_messages")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            _check((*where, name), each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check(where, each, depth + 1)


def _path(where: tuple[Any, ...]) -> str:
    return ".".join(str(name)[:40] for name in where)[:80]
