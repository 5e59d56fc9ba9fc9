"""Parses one line of a prompt file: a text, chat messages, or the turns of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.workloads.interface import Message
from loadtests.workloads.json_lines import RowError, shorten
from loadtests.workloads.scripted_conversation import user

_TEXTS = ("prompt", "text_input", "text")
_LENGTHS = ("max_tokens", "max_completion_tokens", "output_tokens")
_MAX_TOKENS = 10_000_000
_ROLES = {"human": "user", "user": "user", "system": "system"}
_ROLES |= dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant"), "assistant")


@dataclass(frozen=True, slots=True)
class PromptRow:
    """The messages before the first turn, the user's message in each turn, and the maximum answer length, if given.

    `chat`: the row has messages.
    """

    opening: tuple[Message, ...]
    messages: tuple[Message, ...]
    max_tokens: int | None
    chat: bool


def prompt_row(values: Mapping[str, Any]) -> PromptRow:
    """Parse a line's JSON object. Raises RowError.

    - `prompt`, `text_input` or `text`: a text;
    - `messages`: chat messages, sent as one request;
    - `turns`: the user messages of a conversation, which the server answers;
    - `conversations`: the same in ShareGPT's format, `{"from": "human" or "gpt" or "system", "value": text}`; the
    messages of `gpt` are dropped;
    - `body`: a line of OpenAI's batch format, whose body has `messages` or `prompt`
    (platform.openai.com/docs/guides/batch).

    Optionally with `max_tokens`, `max_completion_tokens` or `output_tokens`.
    """
    if isinstance(values.get("body"), dict):
        values = values["body"]
    most = _max_tokens(values)
    if "messages" in values:
        messages = _messages(values["messages"])
        return PromptRow(messages[:-1], messages[-1:], most, chat=True)
    if "turns" in values:
        texts = _list(values["turns"], "turns")
        return PromptRow((), tuple(user(_text(text, "a turn")) for text in texts), most, chat=True)
    if "conversations" in values:
        opening, turns = _conversation(_list(values["conversations"], "conversations"))
        return PromptRow(opening, turns, most, chat=True)
    for key in _TEXTS:
        if key in values:
            return PromptRow((), (user(_text(values[key], key)),), most, chat=False)
    raise RowError(f"has no prompt: it needs one of {', '.join(_TEXTS)}, messages, turns, conversations")


def require_text_content(messages: Sequence[Message]) -> None:
    """Raises RowError unless the content of each message is text, so that it can be sent without a chat template."""
    for message in messages:
        if not isinstance(message.get("content"), str):
            raise RowError("has a message whose content is not text, which form 'text' cannot send")


def _max_tokens(values: Mapping[str, Any]) -> int | None:
    for key in _LENGTHS:
        found = values.get(key)
        if found is None:
            continue
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= _MAX_TOKENS:
            raise RowError(f"has {key} {shorten(found)}; it must be a whole number from 1 to ten million")
        return found
    return None


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"has {name} that is not text but {type(value).__name__}")
    if not value:
        raise RowError(f"has {name} that is empty")
    if "\0" in value:
        raise RowError(f"has {name} with a NUL character, which no server accepts")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RowError(f"has {name} with half a surrogate pair, which is not a character") from None
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise RowError(f"has {name} that is not a list, or is an empty one")
    return value


def _messages(value: Any) -> tuple[Message, ...]:
    messages = _list(value, "messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RowError("has a message without a role")
        if isinstance(message.get("content"), str) and message["content"]:
            _text(message["content"], "a message")
    return tuple(messages)


def _conversation(entries: list[Any]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    opening: list[Message] = []
    turns: list[Message] = []
    for entry in entries:
        speaker = _ROLES.get(str(entry.get("from"))) if isinstance(entry, dict) else None
        if speaker is None:
            raise RowError("has a part of a conversation whose 'from' is not human, gpt or system")
        if speaker == "system" and not turns:
            opening.append({"role": "system", "content": _text(entry.get("value"), "a system message")})
        elif speaker == "user":
            turns.append(user(_text(entry.get("value"), "a turn")))
    if not turns:
        raise RowError("has a conversation without a human message")
    return tuple(opening), tuple(turns)
