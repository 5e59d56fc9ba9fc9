"""How much a format string of a chat template makes: `%` and `str.format`, reckoned before it is done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from inflight.runtime.chat.limits import check_length, check_size

_CONVERSION = re.compile(r"%(?:\(([^)]*)\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?.", re.DOTALL)
"""One conversion of a `%` format (Python's printf-style formatting): its key, width and precision. `%%` is one too."""


def check_percent(text: str, values: Any) -> None:
    """Raise TemplateLimitError where `text % values` would be too long."""
    by_name = isinstance(values, Mapping)
    length = len(text) + (0 if by_name else check_size(values))
    widest = _max_width(values if isinstance(values, tuple) else ())
    for key, *numbers in _CONVERSION.findall(text):
        length += sum(widest if number == "*" else int(number or 0) for number in numbers)
        length += check_size(values.get(key)) if by_name else 0
        check_length(length)


def check_braces(text: str, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError where `text.format(*values, **named)` would be too long."""
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
    """The largest width that an argument could give."""
    return max((abs(one) for one in values if isinstance(one, int)), default=0)
