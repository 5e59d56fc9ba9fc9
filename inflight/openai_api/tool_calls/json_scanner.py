"""Validates one JSON value while it arrives."""

from __future__ import annotations

import re
from collections.abc import Callable

_SPACES = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}

_DIGITS = "0123456789"
# RFC 8259, section 6: which state follows a state of a number, by character.
_NUMBER: dict[str, dict[str, str]] = {
    "start": {"-": "minus", "0": "zero", **dict.fromkeys("123456789", "integer")},
    "minus": {"0": "zero", **dict.fromkeys("123456789", "integer")},
    "zero": {".": "point", "e": "e", "E": "e"},
    "integer": {".": "point", "e": "e", "E": "e", **dict.fromkeys(_DIGITS, "integer")},
    "point": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {"e": "e", "E": "e", **dict.fromkeys(_DIGITS, "fraction")},
    "e": {"+": "sign", "-": "sign", **dict.fromkeys(_DIGITS, "exponent")},
    "sign": dict.fromkeys(_DIGITS, "exponent"),
    "exponent": dict.fromkeys(_DIGITS, "exponent"),
}
_WHOLE_NUMBERS = frozenset({"zero", "integer", "fraction", "exponent"})


class JsonScanner:
    """Reads one value of RFC 8259 once, character by character, to its end or to the first invalid character."""

    def __init__(self, max_nesting: int) -> None:
        self.complete = False
        self.failed = False
        self._max_nesting = max_nesting
        self._closers: list[str] = []  # of the open objects and arrays
        self._step: Callable[[str, int, int], int] = self._value
        self._empty = False  # whether the open object or array may end at once
        self._key = False  # whether the open string is a key
        self._rest = ""  # of the open literal
        self._hex_digits = 0
        self._number = ""

    def scan(self, text: str, start: int, stop: int) -> int:
        """Read `text[start:stop]` and return the position behind the last valid character."""
        at = start
        while at < stop and not (self.complete or self.failed):
            at = self._step(text, at, stop)
        return at

    def _fail(self, at: int) -> int:
        self.failed = True
        return at

    def _end_value(self) -> None:
        self.complete = not self._closers
        self._step = self._next

    def _value(self, text: str, at: int, stop: int) -> int:
        if (at := _after(_SPACES, text, at, stop)) == stop:
            return at
        symbol = text[at]
        if self._empty and symbol == self._closers[-1]:
            return self._close(at)
        self._empty = False
        if symbol == '"':
            self._key = False
            self._step = self._string
        elif symbol in "{[":
            if len(self._closers) == self._max_nesting:
                return self._fail(at)
            self._closers.append("}" if symbol == "{" else "]")
            self._step = self._member if symbol == "{" else self._value
            self._empty = True
        elif symbol in _LITERALS:
            self._rest = _LITERALS[symbol]
            self._step = self._literal
        elif symbol in _NUMBER["start"]:
            self._number = _NUMBER["start"][symbol]
            self._step = self._digits
        else:
            return self._fail(at)
        return at + 1

    def _member(self, text: str, at: int, stop: int) -> int:
        if (at := _after(_SPACES, text, at, stop)) == stop:
            return at
        if self._empty and text[at] == "}":
            return self._close(at)
        if text[at] != '"':
            return self._fail(at)
        self._empty = False
        self._key = True
        self._step = self._string
        return at + 1

    def _colon(self, text: str, at: int, stop: int) -> int:
        if (at := _after(_SPACES, text, at, stop)) == stop:
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._value
        return at + 1

    def _next(self, text: str, at: int, stop: int) -> int:
        if (at := _after(_SPACES, text, at, stop)) == stop:
            return at
        if text[at] == self._closers[-1]:
            return self._close(at)
        if text[at] != ",":
            return self._fail(at)
        self._step = self._member if self._closers[-1] == "}" else self._value
        return at + 1

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._empty = False
        self._end_value()
        return at + 1

    def _string(self, text: str, at: int, stop: int) -> int:
        if (at := _after(_PLAIN, text, at, stop)) == stop:
            return at
        if text[at] == '"':
            if self._key:
                self._step = self._colon
            else:
                self._end_value()
        elif text[at] == "\\":
            self._step = self._escape
        else:
            return self._fail(at)
        return at + 1

    def _escape(self, text: str, at: int, stop: int) -> int:
        if text[at] == "u":
            self._hex_digits = 4
            self._step = self._unicode
        elif text[at] in '"\\/bfnrt':
            self._step = self._string
        else:
            return self._fail(at)
        return at + 1

    def _unicode(self, text: str, at: int, stop: int) -> int:
        if text[at] not in _HEX:
            return self._fail(at)
        self._hex_digits -= 1
        if not self._hex_digits:
            self._step = self._string
        return at + 1

    def _literal(self, text: str, at: int, stop: int) -> int:
        if text[at] != self._rest[0]:
            return self._fail(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()
        return at + 1

    def _digits(self, text: str, at: int, stop: int) -> int:
        following = _NUMBER[self._number].get(text[at])
        if following:
            self._number = following
            return at + 1
        if self._number not in _WHOLE_NUMBERS:
            return self._fail(at)
        self._end_value()
        return at


def _after(pattern: re.Pattern[str], text: str, at: int, stop: int) -> int:
    match = pattern.match(text, at, stop)
    assert match is not None  # both patterns match nothing, too
    return match.end()
