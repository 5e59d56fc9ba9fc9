"""How much a chat template may make of what callers send: characters, bits and work, looked at before it is done.

The template is the operator's own. These bounds keep a caller's messages from holding up everybody's: what an
ordinary template does is bounded, and what only a hostile one would do is not, beyond what costs nothing to look at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

MAX_CHARACTERS = 16 * 2**20
"""The longest text, list or string."""
MAX_CPU_SECONDS = 1.0
"""Of the processor, in the thread that renders."""
_MAX_OUTPUT_CHARACTERS = 4 * MAX_CHARACTERS
"""Of all that its expressions show together: what a macro shows is counted where it is shown again."""
_MAX_BITS = 16_384
_VALUE_CHARACTERS = 4
"""Characters that anything else takes in a text, what stands between two of them included."""
_VALUES_PER_TIME_CHECK = 4096
"""Values that are walked through between two looks at the clock."""


class TemplateLimitError(Exception):
    """A template goes beyond what it may take."""


class _Spent(threading.local):
    """What the rendering that runs in this thread has taken so far."""

    shown = 0
    until: float | None = None


_spent = _Spent()


@contextmanager
def bounded() -> Iterator[None]:
    """What is rendered inside takes no more, all together, than one template may; the outermost of several counts."""
    if _spent.until is not None:
        yield
        return
    _spent.shown = 0
    _spent.until = time.thread_time() + MAX_CPU_SECONDS
    try:
        yield
    finally:
        _spent.until = None


def charge(characters: int) -> None:
    """Account for text that is shown; raises TemplateLimitError where it is too much, or too late."""
    _spent.shown += characters
    if _spent.shown > _MAX_OUTPUT_CHARACTERS:
        raise TemplateLimitError(f"it makes more than {_MAX_OUTPUT_CHARACTERS} characters")
    check_time()


def check_time() -> None:
    if _spent.until is not None and time.thread_time() > _spent.until:
        raise TemplateLimitError(f"it takes more than {MAX_CPU_SECONDS:g} s of work")


def check_length(length: int) -> None:
    if length > MAX_CHARACTERS:
        raise TemplateLimitError(
            f"it makes something of {length} characters or parts; at most {MAX_CHARACTERS} are allowed"
        )


def check_size(value: Any) -> int:
    """About how many characters `value` has as text, all that it holds included. Raises TemplateLimitError for too
    many.
    """
    return _walk(value, 0, 0)


def check_json(value: Any, indent: Any, separators: Any) -> None:
    """Raise TemplateLimitError where the JSON of `value`, whose lines `indent` moves in by their depth, would be too
    long.
    """
    step = len(indent) if isinstance(indent, str) else max(0, indent) if isinstance(indent, int) else 0
    between = sum(len(one) for one in separators or () if isinstance(one, str))
    _walk(value, step, between)


def _walk(value: Any, step: int, between: int) -> int:
    """The sum of what each value takes, `step` more for each level that it lies deep, and what stands around it."""
    size, seen, around, level = 0, 0, between, [value]
    while level:
        deeper: list[Any] = []
        for one in level:
            size += (len(one) if isinstance(one, str | bytes) else _VALUE_CHARACTERS) + around
            if isinstance(one, Mapping):
                deeper += one
                deeper += one.values()
            elif isinstance(one, list | tuple):
                check_length(size + _VALUE_CHARACTERS * (len(deeper) + len(one)))
                deeper += one
            seen += 1
            if seen % _VALUES_PER_TIME_CHECK == 0:
                check_length(size)
                check_time()
        check_length(size)
        level, around = deeper, around + step
    return size


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raise TemplateLimitError where `left operator right` would be too large; formats are looked at elsewhere."""
    if operator == "+" and _has_length(left) and _has_length(right):
        check_length(len(left) + len(right))
    elif operator == "*":
        for one, other in ((left, right), (right, left)):
            if _has_length(one) and isinstance(other, int):
                check_length(len(one) * max(other, 0))
        _check_bits(left, right, lambda: left.bit_length() + right.bit_length())
    elif operator == "**":
        _check_bits(left, right, lambda: left.bit_length() * max(right, 0))


def joined(separator: Any, parts: Iterable[Any]) -> str:
    """The parts as one text; TemplateLimitError where that is too long."""
    between, texts, length = str(separator), list[str](), 0
    for part in parts:
        check_size(part)
        texts.append(str(part))
        length += len(texts[-1]) + len(between)
        check_length(length)
    return between.join(texts)


def _has_length(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)


def _check_bits(left: Any, right: Any, bits: Callable[[], int]) -> None:
    if isinstance(left, int) and isinstance(right, int) and bits() > _MAX_BITS:
        raise TemplateLimitError(f"it makes a number of more than {_MAX_BITS} bits")
