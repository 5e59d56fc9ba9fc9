"""Figures and foreign texts as a reader sees them."""

from __future__ import annotations

import math
import unicodedata

NOTHING = "–"
MAX_TEXT_CHARACTERS = 400
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def seconds(value: float | None) -> str:
    """A time in the unit that fits, with three digits.

    >>> seconds(0.00042), seconds(0.0123), seconds(0.512), seconds(1.5), seconds(300), seconds(None)
    ('420 µs', '12.3 ms', '512 ms', '1.5 s', '300 s', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0 ms"
    if abs(value) >= 0.9995:
        return f"{number(value)} s"
    return f"{number(value * 1e3)} ms" if abs(value) >= 0.0009995 else f"{number(value * 1e6)} µs"


def number(value: float | None) -> str:
    """Three significant digits, and all of those before the point.

    >>> number(0.012345), number(9.999), number(12.0), number(1234.56), number(None)
    ('0.0123', '10', '12', '1,235', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    if decimals <= 0:
        return f"{value:,.0f}"
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".")


def percent(value: float | None) -> str:
    """A part of one in per cent; what is not quite all never reads as all, nor a little as nothing.

    >>> percent(1.0), percent(0.9876), percent(0.99996), percent(0.9999999), percent(0.0004), percent(None)
    ('100%', '98.8%', '99.996%', '>99.999%', '0.04%', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    for decimals in (1, 2, 3):
        text = f"{value * 100:.{decimals}f}".rstrip("0").rstrip(".")
        if (text == "100") == (value == 1) and (text == "0") == (value == 0):
            return f"{text}%"
    return "<0.001%" if value < 0.5 else ">99.999%"


def money(value: float | None, currency: str) -> str:
    """
    >>> money(1.8449, "USD"), money(0.0123, "EUR"), money(None, "USD")
    ('1.84 USD', '0.0123 EUR', '–')
    """
    return NOTHING if value is None or not math.isfinite(value) else f"{number(value)} {text(currency)}"


def signed(value: float) -> str:
    """
    >>> signed(0), signed(3), signed(-1200)
    ('0', '+3', '-1,200')
    """
    return f"{value:+,}" if value else "0"


def count(value: int, noun: str) -> str:
    """
    >>> count(1, "request"), count(1200, "request")
    ('1 request', '1,200 requests')
    """
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def text(value: object) -> str:
    """Any text on one line: a long one is cut, and what can't be shown stands as a sign that can.

    >>> text("a\\x00b"), text("two\\nlines"), len(text("x" * 10**6)) < 500
    ('a␀b', 'two lines', True)
    """
    whole = str(value)
    cut = printable(whole[:MAX_TEXT_CHARACTERS])
    return cut if len(whole) <= MAX_TEXT_CHARACTERS else f"{cut}… ({len(whole):,} characters in all)"


def printable(value: str) -> str:
    """The same text of characters that a page can hold and a reader can see."""
    return "".join(_sign(character) for character in value)


def _sign(character: str) -> str:
    if character.isspace():
        return " "
    if ord(character) < 32:
        return chr(0x2400 + ord(character))
    # Lone surrogates can't be written as UTF-8; marks of direction would turn the page's own text round.
    hidden = unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTIONS
    return "\ufffd" if hidden else character
