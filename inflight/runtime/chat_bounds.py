"""How much a chat template may make: characters, bits and seconds, looked at before each thing that could grow."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 16 * 2**20
"""The longest text, list or string."""
MOST_SECONDS = 10.0
_MOST_SHOWN = 4 * MOST_CHARACTERS
"""Of all that its expressions show together: what a macro shows is counted where it is shown again."""
_MOST_WIDTH = 1_000_000
_MOST_BITS = 16_384
_OTHER = 4
"""Characters that anything else takes in a text, what stands between two of them included."""
_MOST_FIELD = 10_000
_WIDE = re.compile(r"\d{5,}|\*|\{[^{}]*\{")
"""In a format: a width above `_MOST_FIELD`, one that an argument gives, or a field within a field."""


class TooMuchError(Exception):
    """A template goes beyond what it may take."""


class Spent(threading.local):
    """What the rendering that runs in this thread has taken so far."""

    shown = 0
    until = float("inf")

    def begin(self) -> None:
        self.shown = 0
        self.until = time.monotonic() + MOST_SECONDS

    def end(self) -> None:
        self.until = float("inf")

    def take(self, characters: int) -> None:
        """Account for text; raises TooMuchError where it is too much, or too late."""
        self.shown += characters
        if self.shown > _MOST_SHOWN:
            raise TooMuchError(f"it makes more than {_MOST_SHOWN} characters")
        if time.monotonic() > self.until:
            raise TooMuchError(f"it takes more than {MOST_SECONDS:g} seconds")


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raise TooMuchError where `left operator right` would be too large."""
    if operator == "+" and _sized(left) and _sized(right):
        check_length(len(left) + len(right))
    elif operator == "*":
        for one, other in ((left, right), (right, left)):
            if _sized(one) and isinstance(other, int):
                check_length(len(one) * max(other, 0))
        _check_bits(left, right, lambda: left.bit_length() + right.bit_length())
    elif operator == "**":
        _check_bits(left, right, lambda: left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        _check_format(left, right)


def check_call(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TooMuchError where a method of a string or number, called so, would make too much."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, str | bytes | int | float):
        return
    check_growth(getattr(function, "__name__", ""), owner, [*arguments, *named.values()])


def check_growth(name: str, value: Any, arguments: Sequence[Any]) -> None:
    """Raise TooMuchError where a filter or method of this name would make too much of `value`.

    What is no text is measured as the text that it is made into.
    """
    check_size(value)
    if isinstance(value, str) and name in ("format", "format_map"):
        _check_format(value, arguments)
    elif any(isinstance(one, int) and abs(one) > _MOST_WIDTH for one in arguments):
        raise TooMuchError(f"{name} is asked for more than {_MOST_WIDTH}")
    widths = [one for one in arguments if isinstance(one, int)]
    texts = [one for one in arguments if isinstance(one, str)]
    if name in ("indent", "wordwrap", "expandtabs", "tojson"):
        check_length(check_size(value) * max([1, *widths, *map(len, texts)]))
    elif name == "replace" and isinstance(value, str) and len(texts) >= 2:
        check_length(len(value) + value.count(texts[0]) * max(0, len(texts[1]) - len(texts[0])))
    elif name == "translate" and arguments and isinstance(arguments[0], dict):
        longest = max((len(one) for one in arguments[0].values() if isinstance(one, str)), default=1)
        check_length(len(value) * longest)


def joined(separator: Any, parts: Iterable[Any]) -> str:
    """The parts as one text; TooMuchError where that is too long."""
    between, texts, length = str(separator), list[str](), 0
    for part in parts:
        check_size(part)
        texts.append(str(part))
        length += len(texts[-1]) + len(between)
        check_length(length)
    return between.join(texts)


def check_size(value: Any) -> int:
    """About how many characters `value` has as text, all that it holds included. Raises TooMuchError for too many."""
    size, left = 0, [value]
    while left:
        one = left.pop()
        size += len(one) if isinstance(one, str | bytes) else _OTHER
        check_length(size)
        if isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            check_length(size + len(one) + len(left))
            left += one
    return size


def check_length(length: int) -> None:
    if length > MOST_CHARACTERS:
        raise TooMuchError(f"it makes something of {length} characters or parts; at most {MOST_CHARACTERS} are allowed")


def _sized(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)


def _check_bits(left: Any, right: Any, bits: Callable[[], int]) -> None:
    if isinstance(left, int) and isinstance(right, int) and bits() > _MOST_BITS:
        raise TooMuchError(f"it makes a number of more than {_MOST_BITS} bits")


def _check_format(text: str, values: Any) -> None:
    if _WIDE.search(text):
        raise TooMuchError("a format has a width that can't be told, or is too large")
    fields = text.count("%") + text.count("{")
    check_length(len(text) + fields * (_MOST_FIELD + check_size(values)))
