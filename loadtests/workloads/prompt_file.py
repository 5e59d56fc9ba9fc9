"""Prompts and conversations from a JSON Lines file."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtests.workloads.distributions import Distribution
from loadtests.workloads.interface import Message
from loadtests.workloads.json_lines import JsonLines, RowError, shorten
from loadtests.workloads.scripted_conversation import ClientCancellation, ScriptedConversation, Turn, user
from loadtests.workloads.spec import WorkloadSpec

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


def _max_tokens(values: Mapping[str, Any]) -> int | None:
    for key in _LENGTHS:
        value = values.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_TOKENS:
            raise RowError(f"has {key} {shorten(value)}; it must be a whole number from 1 to ten million")
        return value
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


# Separates the order from other draws with the same seed.
_STREAM = 0x6F72646572


class PromptFile:
    """A session for each line, in order or shuffled, once or repeatedly; `spec` says what its rows do not.

    All lines are validated at the start and parsed again when they are used: a million of them would take gigabytes as
    objects. Lines that cannot be sent are left out. Raises LoadError if all are such, or one is not JSON.
    """

    def __init__(
        self, data: bytes, spec: WorkloadSpec, output_tokens: Distribution, think_time: Distribution,
        cancellation: ClientCancellation, seed: int,
    ) -> None:  # fmt: skip
        self.lines = JsonLines(data, str(spec.prompts))
        self._spec = spec
        self._output_tokens, self._think_time, self._cancellation = output_tokens, think_time, cancellation
        self._seed = seed
        self._order = lru_cache(2)(self._shuffled_row)
        self.lines.keep_valid(self._parse)

    def session(self, number: int) -> ScriptedConversation | None:
        turn, row = divmod(number, len(self.lines))
        if turn and self._spec.repeat is False:
            return None
        if self._spec.order == "shuffled":
            row = int(self._order(turn)[row])
        prompt = self._parse(self.lines.read(row))
        source = random.Random(f"{self._seed}/{number}")
        turns = []
        for at, message in enumerate(prompt.messages):
            max_tokens = prompt.max_tokens or self._output_tokens.draw_integer(source)
            max_tokens = min(max_tokens, self._spec.max_output_tokens or max_tokens)
            think = self._think_time.draw_number(source) if at else 0.0
            turns.append(Turn(message, max_tokens, think, self._cancellation.draw(source)))
        chat = prompt.chat if self._spec.prompt_format == "auto" else self._spec.prompt_format == "messages"
        return ScriptedConversation(number, turns, chat=chat, opening=prompt.opening)

    def _parse(self, values: dict[str, Any]) -> PromptRow:
        prompt = prompt_row(values)
        if self._spec.prompt_format == "text":
            for message in (*prompt.opening, *prompt.messages):
                if not isinstance(message.get("content"), str):
                    raise RowError("has a message whose content is not text, which form 'text' cannot send")
        return prompt

    def _shuffled_row(self, turn: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([_STREAM, self._seed, turn]).permutation(len(self.lines))
