"""Finds tool calls in the text of an answer as it arrives, in the formats of Hermes and Qwen, Llama 3 and Mistral.

Each character is read once. Text that only looks like the beginning of a call is held back until it is known, and
given out as text otherwise, so nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Protocol

from inflight.openai_api.events import Event, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.reasoning import held_back

MAX_CALLS = 128
MAX_CALL_LENGTH = 2**20
MAX_DEPTH = 64

_NAMES = ("name",)
_ARGUMENTS = ("arguments", "parameters")
_WHITESPACE = " \t\r\n"
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ToolCallParser(Protocol):
    """Parses the text of one choice; `done` once a call is complete and no other is wanted."""

    @property
    def done(self) -> bool: ...

    def feed(self, text: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


class _Object:
    """Reads one JSON object `{"name": ..., "arguments": {...}}` and hands out the arguments as they arrive.

    With `name`, the object is the arguments themselves.
    """

    def __init__(self, names: Collection[str], name: str | None = None) -> None:
        self._names = names
        self.name = name
        self.raw: list[str] = []
        self.done = self.failed = self.announced = False
        self._length = self._depth = 0
        self._in_string = self._escaped = False
        self._bare = name is not None
        self._key: str | None = None
        self._token: list[str] = []
        """Characters of the string or value at depth 1."""
        self._expect_value = False
        self._in_arguments = self._bare
        self._arguments: list[str] = []
        self._closed: list[str] = []
        self.has_arguments = self._bare
        self._opened = self._begun = False
        """Whether the arguments' brace was read, and what follows it shows that they are an object of JSON."""

    def feed(self, text: str) -> int:
        """Read characters up to the object's end; return how many."""
        for place, character in enumerate(text):
            self._length += 1
            if self._length > MAX_CALL_LENGTH:
                self.failed = True
            else:
                self._read(character)
            self.raw.append(character)
            if self.done or self.failed:
                return place + 1
        return len(text)

    @property
    def started(self) -> bool:
        """Whether this is a call: its name is known, and its arguments have begun or are left out."""
        return self.name is not None and (self._begun or (self.done and not self.has_arguments))

    def take(self) -> str:
        """Return the arguments read since the last time."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _read(self, character: str) -> None:
        if self._opened and not self._begun and character not in _WHITESPACE:
            self._begun = character in '"}'
            self.failed = not self._begun
            if self.failed:
                return
        if self._in_string:
            self._keep(character)
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                if self._depth == 1 and not self._bare:
                    self._end_string()
            elif ord(character) < 32:
                self.failed = True
        elif character == '"':
            self._in_string = True
            if self._depth == 1 and not self._bare:
                self._token = []
            self._keep(character)
        elif character in "{[":
            self._open(character)
        elif character in "}]":
            self._close(character)
        elif self._depth == 1 and not self._bare:
            self._between(character)
        else:
            self._keep(character)

    def _open(self, character: str) -> None:
        if self._depth == 1 and not self._bare:
            if not self._expect_value:
                self.failed = True
            elif self._key in _ARGUMENTS:
                if character != "{" or self.has_arguments:
                    self.failed = True
                self._in_arguments = self.has_arguments = True
        self._closed.append("}" if character == "{" else "]")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.failed = True
        self._opened = self._opened or self._in_arguments
        self._keep(character)

    def _close(self, character: str) -> None:
        if not self._closed or self._closed.pop() != character:
            self.failed = True
            return
        self._depth -= 1
        self._keep(character)
        if self._depth == 1 and not self._bare:
            self._in_arguments = self._expect_value = False
        elif self._depth == 0:
            self.done = True
            self.failed = self.name is None

    def _between(self, character: str) -> None:
        if character == ":":
            self._expect_value = True
        elif character == ",":
            self._expect_value, self._key = False, None

    def _end_string(self) -> None:
        try:
            value = json.loads("".join(self._token))
        except ValueError:
            self.failed = True
            return
        if not self._expect_value:
            self._key = value
        elif self._key in _NAMES:
            if value not in self._names or self.name is not None:
                self.failed = True
            else:
                self.name = value
        elif self._key in _ARGUMENTS:
            self.failed = True

    def _keep(self, character: str) -> None:
        if self._in_arguments:
            self._arguments.append(character)
        elif (self._depth == 1 and self._in_string) or (self._depth == 1 and character == '"'):
            self._token.append(character)


class _CallParser:
    """What all formats share. Subclasses find where objects begin and what follows them."""

    start_marker = ""
    bare_opening = ""
    """Characters that begin a call at the beginning of an answer, without the marker."""

    def __init__(self, names: Collection[str], parallel: bool = True) -> None:
        self._names, self._parallel = names, parallel
        self.done = False
        self._pending = ""
        self._object: _Object | None = None
        self._state = "begin"
        self._calls = 0
        self._strip = False
        """Whether whitespace is dropped: between calls, and after them."""
        self._prefix = ""
        """What was consumed of the current call before its object: it is text if the call fails."""

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        self._pending += text
        while not self.done and self._step(events):
            pass
        if self.done:
            self._pending = ""
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._object is not None and not self._object.announced:
            self._text(events, self._prefix + "".join(self._object.raw))
        elif self._object is None and self._state not in ("after",):
            self._text(events, self._prefix)
        if not self.done and (self._state != "after" or self._pending.strip(_WHITESPACE + ";,]")):
            self._text(events, self._pending)
        self._pending, self._object, self._prefix = "", None, ""
        return events

    def _step(self, events: list[Event]) -> bool:
        """Do one step; return whether there may be another without more text."""
        if self._object is not None:
            return self._read_object(self._object, events)
        return bool(getattr(self, f"_{self._state}")(events))

    def _begin(self, events: list[Event]) -> bool:
        """At the beginning of the answer, where some formats need no marker."""
        begun = self._pending.lstrip(_WHITESPACE)
        if not begun or (self.start_marker.startswith(begun) and begun != self.start_marker):
            return False
        if begun[0] in self.bare_opening and not begun.startswith(self.start_marker):
            self._prefix = self._pending[: len(self._pending) - len(begun)]
            self._pending, self._state = begun, "opening"
        else:
            self._state = "searching"
        return True

    def _searching(self, events: list[Event]) -> bool:
        """In text, look for the marker."""
        if self._strip:
            self._pending = self._pending.lstrip(_WHITESPACE)
        before, marker, after = (
            self._pending.partition(self.start_marker) if self.start_marker else (self._pending, "", "")
        )
        if marker and self._calls < MAX_CALLS:
            self._text(events, before)
            self._prefix, self._pending, self._state = marker, after, "opening"
            return True
        keep = held_back(self._pending, self.start_marker) if self.start_marker else 0
        self._text(events, self._pending[: len(self._pending) - keep])
        self._pending = self._pending[len(self._pending) - keep :]
        return False

    def _opening(self, events: list[Event]) -> bool:
        """After the marker, where an object must begin."""
        begun = self._skip_space()
        if not begun:
            return False
        if begun[0] == "{":
            self._object = _Object(self._names)
            return True
        return self._give_up(events)

    def _after(self, events: list[Event]) -> bool:
        """After a complete call."""
        self._state = "searching"
        return True

    def _read_object(self, found: _Object, events: list[Event]) -> bool:
        count = found.feed(self._pending)
        self._pending = self._pending[count:]
        if found.started and not found.announced:
            found.announced = True
            events.append(ToolCallStart(self._calls, str(found.name)))
        if found.announced and (fragment := found.take()):
            events.append(ToolCallArguments(self._calls, fragment))
        if found.failed:
            self._object = None
            if found.announced:
                self._calls += 1
                self._prefix = ""
                self._state, self._strip = "searching", True
                return bool(self._pending)
            self._pending = "".join(found.raw) + self._pending
            return self._give_up(events)
        if not found.done:
            return False
        if not found.has_arguments:
            events.append(ToolCallArguments(self._calls, "{}"))
        self._object, self._prefix, self._state, self._strip = None, "", "after", True
        self._calls += 1
        self.done = not self._parallel or self._calls >= MAX_CALLS
        return True

    def _give_up(self, events: list[Event]) -> bool:
        """What looked like a call is text."""
        self._text(events, self._prefix + self._pending[:1])
        self._prefix, self._pending, self._state = "", self._pending[1:], "searching"
        return bool(self._pending)

    def _skip_space(self) -> str:
        begun = self._pending.lstrip(_WHITESPACE)
        self._prefix += self._pending[: len(self._pending) - len(begun)]
        self._pending = begun
        return begun

    def _text(self, events: list[Event], text: str) -> None:
        if not text:
            return
        self._strip = False
        if events and isinstance(events[-1], TextDelta):
            events[-1] = TextDelta(events[-1].text + text)
        else:
            events.append(TextDelta(text))


class HermesParser(_CallParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several after another."""

    start_marker = "<tool_call>"
    _END = "</tool_call>"

    def _after(self, events: list[Event]) -> bool:
        begun = self._pending.lstrip(_WHITESPACE)
        if not begun or (self._END.startswith(begun) and begun != self._END):
            return False
        self._pending, self._state = begun.removeprefix(self._END), "searching"
        return True


class Llama3Parser(_CallParser):
    """`{"name": ..., "parameters": {...}}` as the whole answer, or after `<|python_tag|>`; several with `;` between."""

    start_marker = "<|python_tag|>"
    bare_opening = "{"

    def _after(self, events: list[Event]) -> bool:
        begun = self._pending.lstrip(_WHITESPACE + ";")
        if not begun:
            return False
        self._pending, self._state = begun, "opening" if begun[0] == "{" else "searching"
        return True


class MistralParser(_CallParser):
    """`[TOOL_CALLS][{...}, {...}]`, or `[TOOL_CALLS]name[ARGS]{...}`; detokenizers may leave out the marker."""

    start_marker = "[TOOL_CALLS]"
    bare_opening = "["
    _ARGS = "[ARGS]"

    def _begin(self, events: list[Event]) -> bool:
        begun = self._pending.lstrip(_WHITESPACE)
        if begun and any(each.startswith(begun) or begun.startswith(each) for each in self._names):
            self._prefix = self._pending[: len(self._pending) - len(begun)]
            self._pending, self._state = begun, "opening"
            return True
        if begun == "[":  # the marker, or a list without it
            return False
        return super()._begin(events)

    def _opening(self, events: list[Event]) -> bool:
        begun = self._skip_space()
        if begun.startswith("["):
            rest = begun[1:].lstrip(_WHITESPACE)
            if not rest:
                return False
            if rest[0] != "{":
                return self._give_up(events)
            self._prefix += begun[: len(begun) - len(rest)]
            self._pending = rest
            begun = rest
        if begun.startswith("{") or not begun:
            return super()._opening(events)
        return self._named(begun, events)

    def _named(self, begun: str, events: list[Event]) -> bool:
        """`name[ARGS]{` or `name{`."""
        match = _FUNCTION_NAME.match(begun)
        name = match[0] if match else ""
        if name == begun:
            return False if any(each.startswith(name) for each in self._names) else self._give_up(events)
        rest = begun[len(name) :]
        if name in self._names and (rest.startswith("{") or self._ARGS.startswith(rest[: len(self._ARGS)])):
            after = rest.removeprefix(self._ARGS)
            if not after or not after.startswith("{"):
                return False if len(rest) <= len(self._ARGS) else self._give_up(events)
            self._prefix += begun[: len(begun) - len(after)]
            self._pending, self._object = after, _Object(self._names, name)
            return True
        return self._give_up(events)

    def _after(self, events: list[Event]) -> bool:
        begun = self._pending.lstrip(_WHITESPACE + ",]")
        if not begun:
            return False
        self._pending, self._state = begun, "opening" if begun[0] == "{" else "searching"
        return True


class NamedParser:
    """The whole answer is the arguments of one function: it was constrained to their schema."""

    def __init__(self, name: str) -> None:
        self.done = False
        self._name = name
        self._begun = False

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            events.append(ToolCallStart(0, self._name))
        return [*events, ToolCallArguments(0, text)]

    def finish(self) -> list[Event]:
        return []


FORMATS: dict[str, type[_CallParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3Parser,
    "mistral": MistralParser,
}


def detect_format(template: str) -> str | None:
    """Return the name of the format that a chat template asks the model for; None if it knows no tools."""
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    return "llama3_json" if "tools" in template and '"parameters"' in template.replace("\\", "") else None
