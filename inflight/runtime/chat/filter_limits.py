"""How much the filters and methods of a chat template make, reckoned before they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inflight.runtime.chat.format_limits import check_braces, check_percent
from inflight.runtime.chat.limits import check_json, check_length, check_size

_PADDING_FILTERS = ("center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice")
"""They make as much as their largest number says."""


def check_method(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError where a method of a string or number, called so, would make too much."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, str | bytes | int | float):
        return
    name = getattr(function, "__name__", "")
    if name in ("format", "format_map"):
        check_format_method(function, arguments, named)
    else:
        check_filter(name, owner, arguments, named)


def check_format_method(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """The same of a string's `format` or `format_map`."""
    if function.__name__ == "format_map":
        check_braces(function.__self__, [], arguments[0] if isinstance(arguments[0], Mapping) else {})
    else:
        check_braces(function.__self__, arguments, named)


def check_filter(name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError where a filter or method of this name would make too much of `value`.

    What is no text is measured as the text that it is made into.
    """
    size = check_size(value)
    given = [*arguments, *named.values()]
    width = max((one for one in given if isinstance(one, int)), default=0)
    texts = [one for one in given if isinstance(one, str)]
    if name == "tojson":
        known = {**dict(zip(("ensure_ascii", "indent", "separators", "sort_keys"), arguments, strict=False)), **named}
        check_json(value, known.get("indent"), known.get("separators"))
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
    elif name == "translate" and given and isinstance(given[0], dict):
        longest = max((len(one) for one in given[0].values() if isinstance(one, str)), default=1)
        check_length(size * longest)
