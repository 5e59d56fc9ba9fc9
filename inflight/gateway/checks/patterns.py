"""Patterns that are found in a text that arrives in pieces: RE2's, of bounded length, and their beginnings."""

from __future__ import annotations

import re
import re._constants as sre  # type: ignore[import-not-found]  # Python's own parser, which is not public
import re._parser as sre_parser  # type: ignore[import-not-found]
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import re2

MAX_MATCH = 512
"""Characters of the longest text that a pattern may match, which is the most that a stream holds back for it."""
_MEMORY = 64 * 2**20
_CLASSES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_PLACES = {sre.AT_BOUNDARY: r"\b", sre.AT_NON_BOUNDARY: r"\B"}
_IN_WORDS = frozenset(("Lu", "Ll", "Lt", "Lm", "Mn", "Mc", "Nd", "Nl", "No"))
_IGNORED = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0000-\U000e0fff]")
"""Characters that are not seen, besides those of Unicode's category Cf, such as zero-width spaces."""


class _Normal(dict[str, str]):
    """Characters as they are compared: NFKD, one by one, so that how a text is cut into pieces changes nothing."""

    def __missing__(self, char: str) -> str:
        decomposed = unicodedata.normalize("NFKD", char).encode(errors="ignore").decode()
        normal = "".join(each for each in decomposed if unicodedata.category(each) != "Cf" and not _IGNORED.match(each))
        if len(self) < 2**16:
            self[char] = normal
        return normal


NORMAL = _Normal()


def normal(text: str) -> str:
    """Return a text as it is compared."""
    return text if text.isascii() else "".join(map(NORMAL.__getitem__, text))


class Pattern(NamedTuple):
    """`whole` matches what is looked for, of `least` to `most` characters, and `begun` any beginning of it."""

    whole: str
    begun: str
    least: int
    most: float


_NOTHING = Pattern("", "", 0, 0)


def _then(rest: Pattern, first: Pattern) -> Pattern:
    """Return the sequence of two patterns."""
    if not rest.begun:
        begun = first.begun
    elif first.begun == first.whole:  # one character
        begun = f"{first.whole}(?:{rest.begun})?"
    else:
        begun = "|".join(filter(None, (first.begun, f"{first.whole}(?:{rest.begun})")))
    return Pattern(first.whole + rest.whole, begun, first.least + rest.least, first.most + rest.most)


def sequence(parts: Iterable[Pattern]) -> Pattern:
    return reduce(_then, reversed(list(parts)), _NOTHING)


def either(parts: Sequence[Pattern]) -> Pattern:
    begun = "|".join(filter(None, (each.begun for each in parts)))
    whole = f"(?:{'|'.join(each.whole for each in parts)})"
    return Pattern(whole, begun, min(each.least for each in parts), max(each.most for each in parts))


def _one(pattern: str) -> Pattern:
    return Pattern(pattern, pattern, 1, 1)


def literal(text: str) -> Pattern:
    return sequence(_one(re2.escape(each)) for each in normal(text))


def _class(items: Sequence[tuple[Any, Any]]) -> Pattern:
    """Return a class, and beside it those of its characters that are compared as several."""
    inside, several = "", []
    for op, value in items:
        if op is sre.NEGATE:
            inside += "^"
        elif op is sre.CATEGORY:
            inside += _CLASSES[value]
        else:
            first, last = value if op is sre.RANGE else (value, value)
            inside += f"\\x{{{first:x}}}-\\x{{{last:x}}}"
            several += [chr(each) for each in range(max(first, 128), last + 1) if NORMAL[chr(each)] != chr(each)]
    parts = [_one(f"[{inside}]"), *map(literal, () if inside.startswith("^") else several)]
    return parts[0] if len(parts) == 1 else either(parts)


def _parsed(items: Iterable[tuple[Any, Any]]) -> Pattern:
    return sequence(_part(op, value) for op, value in items)


def _part(op: Any, value: Any) -> Pattern:
    if op is sre.LITERAL:
        return literal(chr(value))
    if op is sre.NOT_LITERAL:
        return _one(f"[^\\x{{{value:x}}}]")
    if op is sre.ANY:
        return _one(".")
    if op is sre.IN:
        return _class(value)
    if op is sre.BRANCH:
        return either([_parsed(each) for each in value[1]])
    if op is sre.SUBPATTERN and not value[1] and not value[2]:
        return _parsed(value[3])
    if op is sre.AT and value in _PLACES:
        return _NOTHING._replace(whole=_PLACES[value])
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, each = value[0], value[1], _parsed(value[2])
        if each.most * high > MAX_MATCH:
            raise ValueError(f"it may match more than {MAX_MATCH} characters; write {{0,50}} instead of * or +")
        before = f"(?:{each.whole}){{0,{high - 1}}}" if high > 1 else ""
        begun = f"{before}(?:{each.begun})" if high and each.begun else ""
        return Pattern(f"(?:{each.whole}){{{low},{high}}}", begun, low * each.least, high * each.most)
    raise ValueError("it has a look-around, a reference or an anchor, which RE2 or a stream can't have; leave it out")


def pattern_of(text: str) -> Pattern:
    """Return a pattern of RE2's syntax, in which `(?i)` may be first. Raises ValueError, which says what is wrong."""
    try:
        parsed = sre_parser.parse(text)
        if parsed.state.flags & ~(re.IGNORECASE | re.UNICODE):
            raise ValueError("of flags it can have (?i) alone; leave the others out")
        found = _parsed(parsed)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"it is not a pattern ({error}); correct it") from None
    if not found.least or found.most > MAX_MATCH:
        raise ValueError(f"it must match 1 to {MAX_MATCH} characters; bound it")
    return ignoring_case(found) if parsed.state.flags & re.IGNORECASE else found


def ignoring_case(pattern: Pattern) -> Pattern:
    return pattern._replace(whole=f"(?i:{pattern.whole})", begun=f"(?i:{pattern.begun})")


def compiled(pattern: str) -> Any:
    """Return RE2's pattern, which takes UTF-8 and finds the first match, and the longest there. Raises ValueError."""
    options = re2.Options()
    options.longest_match, options.never_capture = True, True
    options.max_mem, options.log_errors = _MEMORY, False
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        raise ValueError(f"RE2 refuses it ({error}); shorten it") from None


Valid = Callable[[bytes, int, int], int]
"""Returns the end of what a pattern stands for, in what it matches from one place of a text to another; 0 for none."""


def any_match(text: bytes, start: int, end: int) -> int:
    return end


def before(text: bytes, at: int) -> str:
    """Return the character before a place; "" at the beginning."""
    return text[max(0, at - 4) : at].decode(errors="ignore")[-1:]


def in_word(char: str) -> bool:
    """Return whether a character is one of words that have spaces between them; those of Chinese have none."""
    return char == "_" or unicodedata.category(char or " ") in _IN_WORDS


def is_word(text: bytes, start: int, end: int) -> int:
    """Return the end of words that are no part of longer ones; 0 if they are."""
    first, last = text[start : start + 4].decode(errors="ignore")[:1], before(text, end)
    after = text[end : end + 4].decode(errors="ignore")[:1]
    inside = (in_word(first) and in_word(before(text, start))) or (in_word(last) and in_word(after))
    return 0 if inside else end


def word_pattern(words: str) -> Pattern:
    """Return the pattern of words in any case, with any space between them; `is_word` finds whether they are whole."""
    parts = [_NOTHING._replace(whole=r"\b")] if words[:1].isascii() and in_word(words[:1]) else []
    for place, word in enumerate(words.split()):
        parts += [_part(sre.MAX_REPEAT, (1, 4, [(sre.IN, [(sre.CATEGORY, sre.CATEGORY_SPACE)])]))] if place else []
        parts.append(literal(word))
    found = sequence(parts)
    if not found.least or found.most > MAX_MATCH:
        raise ValueError(f"a word must have 1 to {MAX_MATCH} characters that are seen; correct it")
    return ignoring_case(found)
