"""The interface of all parsers of tool calls, and the reading that their formats share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from inflight.openai_api.events import Event, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.partial_match import WHITESPACE, partial_match
from inflight.openai_api.tool_calls.json_scanner import JsonScanner

MAX_CALLS = 128
MAX_ARGUMENTS = 1 << 20  # characters of one call
MAX_NESTING = 64  # objects and arrays of the arguments
MAX_REST = 1 << 14  # characters of one call besides its arguments

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]  # yields where it needs more text

_ARGUMENTS = frozenset({"arguments", "parameters"})
_NAMES = frozenset({"name", "tool_name"})


class ToolCallParser(ABC):
    """Finds the calls in the text of one choice while it arrives, in time linear in its length.

    A call begins once its name is one of `names` and its arguments have begun or are left out; its arguments are given
    out as they arrive, as the model wrote them. What is no such call, or exceeds a limit, is text. If a call that has
    begun becomes invalid, it ends with the arguments so far, and the rest is text; if the answer ends within it, the
    rest is dropped. Whitespace that begins the answer or follows a call is dropped if a call comes next. All behind the
    last call is dropped: the first without `parallel_tool_calls`, or else the one numbered MAX_CALLS.
    """

    # Keys of a call that are skipped besides those of its name and arguments; None: any.
    skipped_keys: frozenset[str] | None = None
    openings: tuple[str, ...] = ()
    """What text begins with that can only be a call."""
    tags: str = ""
    """All tags of the format in a row; those that are special tokens must stay in the text."""
    keyed = False
    """Whether a call may be an object with the function's name as its only key."""

    def __init__(
        self, names: Collection[str], *, parallel_tool_calls: bool = True, schemas: Mapping[str, Any] | None = None
    ) -> None:
        """`schemas` are those of the functions' parameters, which formats without types need."""
        self.calls = 0
        """How many calls have begun."""
        self.done = False
        """Whether the rest of the answer would be dropped, so that its generation can be cancelled."""
        self._names = frozenset(names)
        self._schemas = schemas or {}
        self._parallel = parallel_tool_calls
        self._unread = ""
        self._at = 0
        self._ended = self._cut = False
        self._events: list[Event] = []
        self._text: list[str] = []  # of the next event
        self._held: list[str] = []  # text that may turn out to belong to a call
        self._room = MAX_REST
        self._begun = False
        self._blank = True  # whether no text came since the beginning or the last call
        self._steps = self._answer()

    def feed(self, text: str) -> list[Event]:
        """Take the next text of the answer, and return what is certain now."""
        if self._ended:
            return []
        self._unread = self._unread[self._at :] + text
        self._at = 0
        return self._resume()

    def finish(self, cut: bool = False) -> list[Event]:
        """End the answer, and return what was held back; if the answer was `cut`, without the beginning of a call."""
        self._ended, self._cut = True, cut
        return self._resume()

    def _resume(self) -> list[Event]:
        next(self._steps, None)
        self._flush_text()
        events, self._events = self._events, []
        return events

    @abstractmethod
    def _answer(self) -> Steps[None]:
        """Read the whole answer."""

    # Text. Each of these leaves less unread than a tag has characters, so `feed` copies little.

    def _text_until(self, *tags: str) -> Steps[str]:
        """Give out text up to the first of the tags, and hold and return it; return "" at the end of the answer."""
        pattern = _any_of(tags)
        while True:
            match = pattern.search(self._unread, self._at)
            held = 0 if self._ended else max(partial_match(self._unread, tag, self._at) for tag in tags)
            end = match.start() if match else len(self._unread) - held
            text = self._unread[self._at : end]
            self._held.append(text)
            if not self._blank or text.strip(WHITESPACE):
                self._release()
            self._at = end
            if match:
                self._hold(len(match[0]))
                return match[0]
            if self._ended:
                self._release()
                return ""
            yield

    def _until(self, tag: str, limit: int) -> Steps[str | None]:
        """Hold text up to `tag` and this, and return the text; None if there are more than `limit` characters."""
        start = len(self._held)
        while True:
            stop = self._at + limit + len(tag)
            tag_at = self._unread.find(tag, self._at, stop)
            held = 0 if self._ended else partial_match(self._unread, tag, self._at)
            end = tag_at if tag_at >= 0 else min(len(self._unread) - held, self._at + limit)
            limit -= end - self._at
            self._hold(end - self._at)
            if tag_at >= 0:
                text = "".join(self._held[start:])
                self._hold(len(tag))
                return text
            if self._ended or not limit:
                return None
            yield

    def _rest_is_text(self) -> Steps[None]:
        self._release()
        while (yield from self._peek()):
            self._give_text(self._unread[self._at :])
            self._at = len(self._unread)

    def _give_text(self, text: str) -> None:
        if self._blank and self.calls:
            text = text.lstrip(WHITESPACE)
        if text:
            self._blank = False
            self._text.append(text)

    def _flush_text(self) -> None:
        if self._text:
            self._events.append(TextDelta("".join(self._text)))
            self._text.clear()

    def _hold(self, length: int) -> None:
        self._held.append(self._unread[self._at : self._at + length])
        self._at += length

    def _release(self) -> None:
        """Give out as text what is held."""
        text = "".join(self._held)
        self._held.clear()
        if self._cut and text.lstrip(WHITESPACE).startswith(self.openings):
            self._at = len(self._unread)
        else:
            self._give_text(text)

    # Characters and tags. Each holds what it reads.

    def _peek(self) -> Steps[str]:
        """The next character, without reading it; "" at the end of the answer."""
        while self._at == len(self._unread):
            if self._ended:
                return ""
            yield
        return self._unread[self._at]

    def _spaces(self) -> Steps[str]:
        """Read whitespace, and return the character behind it; "" at the end of the answer or of the room for it."""
        while (symbol := (yield from self._peek())) and symbol in WHITESPACE and self._room > 0:
            self._room -= 1
            self._hold(1)
        return symbol if self._room > 0 else ""

    def _symbol(self, symbols: str) -> Steps[str]:
        """Read whitespace and one of `symbols`; return "" if another character comes."""
        symbol = yield from self._spaces()
        if not symbol or symbol not in symbols:
            return ""
        self._hold(1)
        return symbol

    def _tag(self, tag: str) -> Steps[bool]:
        """Read `tag`, or nothing if something else comes."""
        while True:
            following = self._unread[self._at : self._at + len(tag)]
            if following == tag:
                self._hold(len(tag))
                return True
            if self._ended or not tag.startswith(following):
                return False
            yield

    def _one_of(self, *tags: str) -> Steps[str]:
        """Read one of the tags and return it, or "" if something else comes."""
        for tag in tags:
            if (yield from self._tag(tag)):
                return tag
        return ""

    def _end_tags(self, *tags: str) -> Steps[bool]:
        """Read any number of tags that end calls, and drop them; return whether there were any."""
        found = False
        while True:
            yield from self._spaces()
            if not (yield from self._one_of(*tags)):
                break
            found = True
        rest = self._unread[self._at :]
        if rest and any(tag.startswith(rest) for tag in tags):  # the answer ends within the tag
            self._at = len(self._unread)
        self._held.clear()
        return found

    # Calls.

    def _attempt(self, call: Steps[bool]) -> Steps[bool]:
        """Read one call, and return whether it is complete; if not, all of it that is not given out becomes text."""
        self._begun = False
        self._room = MAX_REST
        complete = yield from call
        if complete or (self._begun and self._ended):
            if not complete:
                self._at = len(self._unread)
            self._held.clear()
            self._blank = True
        else:
            self._release()
        self._room = MAX_REST
        if self._begun and (not self._parallel or self.calls == MAX_CALLS):
            self.done = self._ended = True
            self._unread = ""
            self._at = 0
        return complete

    def _call_tag(self, call: str, *sections: str) -> Steps[bool]:
        """Give out text up to the tag of a call, which tags of a section may precede; False if none comes."""
        while tag := (yield from self._text_until(call, *sections)):
            while tag and tag != call:
                yield from self._spaces()
                tag = yield from self._one_of(call, *sections)
            if tag:
                return True
            self._release()
        return False

    def _name(self) -> Steps[str | None]:
        """Read the name of one of the functions; None if another text comes."""
        name = ""
        while (symbol := (yield from self._peek())) and any(tool.startswith(name + symbol) for tool in self._names):
            name += symbol
            self._hold(1)
        return name if name in self._names else None

    def _array_of_calls(self) -> Steps[bool]:
        """Read the calls of an array whose bracket has been read; return whether it ends as it should."""
        while (yield from self._attempt(self._call_object())):
            symbol = yield from self._symbol(",]")
            if symbol != ",":
                self._held.clear()
                return symbol == "]"
        return False

    def _call_object(self) -> Steps[bool]:
        """Read an object of a name and arguments, in any order."""
        name = arguments = None
        symbol = yield from self._symbol("{")
        while symbol:
            key = yield from self._string()
            if key is None or not (yield from self._symbol(":")):
                return False
            if self.keyed and name is arguments is None and key in self._names:
                name, arguments = key, (yield from self._arguments(key))
                if arguments is None:
                    return False
            elif key in _NAMES and name is None:
                name = yield from self._string()
                if name is None or name not in self._names:
                    return False
                if arguments is not None:
                    self._begin(name)
                    self._give_arguments(arguments)
            elif key in _ARGUMENTS and arguments is None and (yield from self._spaces()) != "n":
                arguments = yield from self._arguments(name)
                if arguments is None:
                    return False
            elif not self._may_skip(key, arguments) or not (yield from self._skipped()):
                return False
            symbol = yield from self._symbol(",}")
            if symbol == "}":
                if name is not None and arguments is None:
                    self._begin(name)
                    self._give_arguments("{}")
                return self._begun
        return False

    def _may_skip(self, key: str, arguments: str | None) -> bool:
        if key in _ARGUMENTS:
            return arguments is None  # null, which means none
        return key not in _NAMES and (self.skipped_keys is None or key in self.skipped_keys)

    def _arguments(self, name: str | None) -> Steps[str | None]:
        """Read arguments: give them out if the name is known, or else return them; None if they are invalid."""
        yield from self._spaces()
        start = len(self._held)
        if not (yield from self._symbol("{")) or (yield from self._spaces()) not in ('"', "}"):
            return None
        opening = "".join(self._held[start:])
        del self._held[start:]
        if name is None:
            return (yield from self._held_value(MAX_ARGUMENTS, opening))
        self._begin(name)
        return "" if (yield from self._value(MAX_ARGUMENTS, self._give_arguments, opening)) else None

    def _begin(self, name: str) -> None:
        self._held.clear()
        self._blank = False
        self._begun = True
        self._flush_text()
        self._events.append(ToolCallStart(self.calls, name))
        self.calls += 1

    def _give_arguments(self, fragment: str) -> None:
        self._events.append(ToolCallArguments(self.calls - 1, fragment))

    # JSON.

    def _string(self) -> Steps[str | None]:
        if (yield from self._spaces()) != '"':
            return None
        text = yield from self._skipped()
        return None if text is None else str(json.loads(text))

    def _skipped(self) -> Steps[str | None]:
        yield from self._spaces()
        text = yield from self._held_value(self._room)
        self._room -= len(text or "")
        return text

    def _held_value(self, limit: int, opening: str = "") -> Steps[str | None]:
        """Hold one value and return it; None if it is invalid or longer than `limit`."""
        parts: list[str] = []
        complete = yield from self._value(limit, parts.append, opening)
        text = "".join(parts)
        self._held.append(text)
        return text if complete else None

    def _value(self, limit: int, take: Callable[[str], None], opening: str) -> Steps[bool]:
        """Pass the parts of one value to `take`; return whether it is complete within `limit` characters.

        `opening`: the valid beginning of the value that has been read.
        """
        scanner = JsonScanner(MAX_NESTING)
        limit -= scanner.scan(opening, 0, len(opening))
        while (yield from self._peek()):
            end = scanner.scan(self._unread, self._at, min(len(self._unread), self._at + limit))
            if end > self._at:
                take(opening + self._unread[self._at : end])
                opening = ""
            limit -= end - self._at
            self._at = end
            if scanner.complete or scanner.failed or not limit:
                return scanner.complete
        return False


@lru_cache(256)
def _any_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tags)))
