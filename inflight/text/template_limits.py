"""Limits on the text, numbers and work that a chat template makes of callers' messages, checked in advance.

The template is the operator's own. These limits keep one caller's messages from delaying all others: they bound what an
ordinary template does; what only a hostile template does is bounded only where the check costs nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import Formatter
from typing import Any

_CONVERSION = re.compile(r"%(?:\(([^)]*)\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?.", re.DOTALL)
"""One conversion of a `%` format (Python's printf-style formatting): its key, width and precision. `%%` is one too."""


def check_percent(text: str, values: Any) -> None:
    """Raise TemplateLimitError if `text % values` would be too long."""
    by_name = isinstance(values, Mapping)
    length = len(text) + (0 if by_name else check_size(values))
    widest = _max_width(values if isinstance(values, tuple) else ())
    for key, *numbers in _CONVERSION.findall(text):
        length += sum(widest if number == "*" else int(number or 0) for number in numbers)
        length += check_size(values.get(key)) if by_name else 0
        check_length(length)


def check_braces(text: str, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError if `text.format(*values, **named)` would be too long."""
    length, place = len(text), 0
    widest = _max_width([*values, *named.values()])
    for _, field, form, _ in Formatter().parse(text):
        if field is None:
            continue
        root = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not root:
            root, place = str(place), place + 1
        if root.isdecimal():
            position = int(root)
            shown = values[position] if position < len(values) else None
        else:
            shown = named.get(root)
        length += check_size(shown) + sum(map(int, re.findall(r"\d+", form or "")))
        length += widest if "{" in (form or "") else 0
        check_length(length)


def _max_width(values: Iterable[Any]) -> int:
    """Return the largest width that an argument could set."""
    return max((abs(value) for value in values if isinstance(value, int)), default=0)


_PADDING_FILTERS = ("center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice")
"""The length of their results is at most their largest argument."""


def check_method(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError if this call of a string's or number's method would return too much."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, str | bytes | int | float):
        return
    name = getattr(function, "__name__", "")
    if name in ("format", "format_map"):
        check_format_method(function, arguments, named)
    else:
        check_filter(name, owner, arguments, named)


def check_format_method(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError if this call of a string's `format` or `format_map` would return too much."""
    if function.__name__ == "format_map":
        check_braces(function.__self__, [], arguments[0] if isinstance(arguments[0], Mapping) else {})
    else:
        check_braces(function.__self__, arguments, named)


def check_filter(name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError if a filter or method of this name would make too much of `value`.

    The size of a value that is not text is that of its text.
    """
    size = check_size(value)
    all_arguments = [*arguments, *named.values()]
    width = max((argument for argument in all_arguments if isinstance(argument, int)), default=0)
    texts = [argument for argument in all_arguments if isinstance(argument, str)]
    if name == "tojson":
        options = {**dict(zip(("ensure_ascii", "indent", "separators", "sort_keys"), arguments, strict=False)), **named}
        check_json(value, options.get("indent"), options.get("separators"))
    elif name == "format":
        check_percent(str(value), named or tuple(arguments))
    elif name in _PADDING_FILTERS:
        check_length(size + width)
    elif name == "indent":
        check_length(size + (1 + len(str(value).splitlines())) * max([width, 4, *map(len, texts)]))
    elif name == "wordwrap":
        check_length(size * (1 + max(map(len, texts), default=1)))
    elif name == "expandtabs":
        check_length(size + value.count("\t" if isinstance(value, str) else b"\t") * width)
    elif name == "replace" and isinstance(value, str) and len(texts) >= 2:
        check_length(size + value.count(texts[0]) * max(0, len(texts[1]) - len(texts[0])))
    elif name == "translate" and all_arguments and isinstance(all_arguments[0], dict):
        longest = max((len(text) for text in all_arguments[0].values() if isinstance(text, str)), default=1)
        check_length(size * longest)


MAX_CHARACTERS = 16 * 2**20
"""The longest text, list or string."""
MAX_CPU_SECONDS = 3.0
"""Of processor time, in the thread that renders: some templates of today take a millisecond or two for each message."""
_MAX_OUTPUT_CHARACTERS = 4 * MAX_CHARACTERS
"""Total of what its expressions show; the output of a macro counts each time it is shown."""
_MAX_BITS = 16_384
_VALUE_CHARACTERS = 4
"""Characters that any other value takes as text, including a separator."""
_VALUES_PER_TIME_CHECK = 4096
"""Values visited between two checks of the time."""


class TemplateLimitError(Exception):
    """A template exceeds a limit."""


class _Spent(threading.local):
    """What the current rendering of this thread has used so far."""

    shown = 0
    until: float | None = None


_spent = _Spent()


@contextmanager
def bounded() -> Iterator[None]:
    """Apply the limits of one template to all rendering in this context; of nested contexts, the outermost counts."""
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
    """Count text that is shown. Raises TemplateLimitError if it exceeds the total, or the time is over."""
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
    """Return the approximate length of `value` as text, nested values included.

    Raises TemplateLimitError if it is too long.
    """
    return _walk(value, 0, 0)


def check_json(value: Any, indent: Any, separators: Any) -> None:
    """Raise TemplateLimitError if the JSON of `value`, with `indent` per level, would be too long."""
    step = len(indent) if isinstance(indent, str) else max(0, indent) if isinstance(indent, int) else 0
    between = sum(len(separator) for separator in separators or () if isinstance(separator, str))
    _walk(value, step, between)


def _walk(value: Any, step: int, between: int) -> int:
    """Return the sum of the sizes of all values, plus `step` per level of depth and `between` between two values."""
    size, seen, around, level = 0, 0, between, [value]
    while level:
        deeper: list[Any] = []
        for item in level:
            size += (len(item) if isinstance(item, str | bytes) else _VALUE_CHARACTERS) + around
            if isinstance(item, Mapping):
                deeper += item
                deeper += item.values()
            elif isinstance(item, list | tuple):
                check_length(size + _VALUE_CHARACTERS * (len(deeper) + len(item)))
                deeper += item
            seen += 1
            if seen % _VALUES_PER_TIME_CHECK == 0:
                check_length(size)
                check_time()
        check_length(size)
        level, around = deeper, around + step
    return size


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raise TemplateLimitError if `left operator right` would be too large; formats are checked elsewhere."""
    if operator == "+" and _has_length(left) and _has_length(right):
        check_length(len(left) + len(right))
    elif operator == "*":
        for operand, other in ((left, right), (right, left)):
            if _has_length(operand) and isinstance(other, int):
                check_length(len(operand) * max(other, 0))
        _check_bits(left, right, lambda: left.bit_length() + right.bit_length())
    elif operator == "**":
        _check_bits(left, right, lambda: left.bit_length() * max(right, 0))


def joined(separator: Any, parts: Iterable[Any]) -> str:
    """Return the joined parts. Raises TemplateLimitError if the text is too long."""
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
