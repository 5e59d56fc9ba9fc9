"""Formats figures and untrusted texts for readers."""

from __future__ import annotations

import math
import unicodedata

NOTHING = "–"
MAX_TEXT_CHARACTERS = 400
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def seconds(value: float | None) -> str:
    """Return a time with three digits, in a suitable unit.

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
    """Return three significant digits, and all digits before the decimal point.

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
    """Return a fraction in percent; rounding never shows 100% or 0% for anything less or more.

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
    """Return any text on one line, shortened if it is long, with visible symbols for unprintable characters.

    >>> text("a\\x00b"), text("two\\nlines"), len(text("x" * 10**6)) < 500
    ('a␀b', 'two lines', True)
    """
    whole = str(value)
    cut = printable(whole[:MAX_TEXT_CHARACTERS])
    return cut if len(whole) <= MAX_TEXT_CHARACTERS else f"{cut}… ({len(whole):,} characters)"


def printable(value: str) -> str:
    """Return the text with visible symbols for characters that a page cannot contain or a reader cannot see."""
    return "".join(_sign(character) for character in value)


def _sign(character: str) -> str:
    if character.isspace():
        return " "
    if ord(character) < 32:
        return chr(0x2400 + ord(character))
    # Lone surrogates cannot be encoded as UTF-8; direction marks would reverse the page's own text.
    hidden = unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTIONS
    return "\ufffd" if hidden else character
