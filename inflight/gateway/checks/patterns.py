"""Patterns that are found in a text that arrives in pieces: RE2's, words, and personal data by form and checksum."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import permutations
from typing import Any

import re2

_MEMORY = 64 * 2**20
_TOKEN = re.compile(
    r"(?P<refused>[*+^$]|\{\d+,\}|\\[AzQEC])"
    r"|(?P<syntax>[|)?]|\((?:\?(?:P?<\w+>|[ims-]*[:)]))?|\{\d+(?:,\d+)?\})"
    r"|\\x(?P<hex>[0-9a-fA-F]{2}|\{[0-9a-fA-F]+\})"
    r"|(?P<one>\\[pP]\{\^?\w+\}|\\[pP]\w|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\\\]])*\]|\.)"
    r"|.",
    re.DOTALL,
)
"""Of RE2's syntax. `one` matches one character, or a place between two."""
_IN_WORDS = frozenset(("Lu", "Ll", "Lt", "Lm", "Mn", "Mc", "Nd", "Nl", "No"))
_IGNORED = re.compile(
    "[\0\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\ufe00-\ufe0f\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Characters that are not seen, besides those of Unicode's category Cf, such as zero-width spaces."""
SPACES = bytes((*range(1, 33), 127))
"""Of normal texts: ASCII's white space and control characters, but the one that stands for quotes."""
_SPACE = r"[\x01-\x20\x7f]"
MAX_SPACES = 4
"""Of those in a row, how many are compared; so a stream holds back no long ones."""
EXCESS = re.compile(f"({_SPACE * MAX_SPACES}){_SPACE}+".encode())


@lru_cache(2**16)
def _normal(char: str) -> str:
    if not char.isascii() and (char.isspace() or unicodedata.category(char) == "Cc"):
        return " "
    decomposed = unicodedata.normalize("NFKD", char).encode(errors="ignore").decode()
    return "".join(each for each in decomposed if unicodedata.category(each) != "Cf" and not _IGNORED.match(each))


def normal(text: str) -> str:
    """Return a text as it is compared: NFKD, each character alone, so that cutting it into pieces changes nothing."""
    return text if text.isascii() and "\0" not in text else "".join(map(_normal, text))


def either(patterns: Iterable[str]) -> str:
    return "|".join(f"(?:{each})" for each in patterns)


def compiled(pattern: str, begun: bool = False) -> Any:
    """Return RE2's pattern of what this one matches, or `begun` also of its beginning at the end of a text.

    It takes UTF-8 of `normal` texts and finds the first match, and the longest there. Raises ValueError.
    """
    options = re2.Options()
    options.longest_match, options.never_capture = True, True
    options.max_mem, options.log_errors = _MEMORY, False
    rewrite = partial(_rewritten, ending=r"|\z" if begun else "")
    try:
        return re2.compile(_TOKEN.sub(rewrite, unicodedata.normalize("NFC", pattern)).encode(), options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
        raise ValueError(f"RE2 refuses it ({why}); correct or shorten it") from None


def _rewritten(token: re.Match[str], ending: str) -> str:
    """Return a token for normal texts. With the ending, each character of a pattern may be missing at a text's end."""
    found = token[0]
    if token["refused"]:
        raise ValueError(f"it has {found}, and must match a bounded text anywhere; write {{0,50}} instead of * or +")
    if token["syntax"]:
        return found
    if token["one"]:
        if normal(found) != found:
            raise ValueError(f"{found} has a character that is compared as several; write (?:a|b) instead of [ab]")
        return f"(?:{found}{ending})"
    chars = normal(chr(int(token["hex"].strip("{}"), 16)) if token["hex"] else found)
    marks = chars[1:] if all(map(unicodedata.combining, chars[1:])) else ""  # a text may have them in any order
    orders = [chars[: len(chars) - len(marks)] + "".join(each) for each in permutations(marks)]
    return f"(?:{either(''.join(f'(?:{re2.escape(each)}{ending})' for each in order) for order in orders)})"


def checked(pattern: str) -> str:
    """Return a pattern of RE2's syntax that can be searched for in a stream. Raises ValueError for another one."""
    search = compiled(pattern)
    found = [search.match(b" aa ", at) for at in range(5)]
    if any(each is not None and not each.group() for each in found):
        raise ValueError("it must match one character at least; bound it")
    return pattern


def before(text: bytes, at: int) -> str:
    """Return the character before a place; "" at the beginning."""
    return text[max(0, at - 4) : at].decode(errors="ignore")[-1:]


def in_word(char: str) -> bool:
    """Return whether a character is one of words that have spaces between them; those of Chinese have none."""
    return char == "_" or unicodedata.category(char or " ") in _IN_WORDS


def word_end(text: bytes, start: int, end: int) -> int:
    """Return the end of words that are no part of longer ones, or else 0."""
    first, after = (text[at : at + 4].decode(errors="ignore")[:1] for at in (start, end))
    inside = (in_word(first) and in_word(before(text, start))) or (in_word(before(text, end)) and in_word(after))
    return 0 if inside else end


def word_pattern(words: str) -> str:
    """Return the pattern of words in any case, with any space between them; `word_end` finds whether they are whole."""
    start = r"\b" if re.match(r"\w", normal(words), re.ASCII) else ""
    pattern = f"{_SPACE}{{1,{MAX_SPACES}}}".join(map(re2.escape, words.split()))
    return f"(?i:{start}{re.sub('(?i)ß|ss', '(?:ß|ss)', pattern)})"


_DASH = r"[ .\-\x{2010}-\x{2015}]"
_END = r"(?:\b|[A-Za-z_])"
"""Of a number; so the many places of a long one at which none begins are passed over at once."""
_LOCAL, _LABEL = r"[A-Za-z0-9._%+'\-]", r"[A-Za-z0-9\-]"
_COUNTRIES = (
    "11NO 12BE 14DK|FI|FK|FO|GL|NL|SD 15MK|SI 16AT|BA|EE|KZ|LT|LU|MN|XK 17CH|HR|LI|LV 18BG|BH|CR|DE|GB|GE|IE|ME|RS|VA "
    "19AE|GI|IL|IQ|OM|SO|TL 20AD|CZ|ES|MD|PK|RO|SA|SE|SK|TN|VG 21LY|PT|ST 22IS|TR 23BI|DJ|FR|GR|IT|MC|MR|SM "
    "24AL|AZ|BY|CY|DO|GT|HN|HU|LB|NI|PL|SV 25BR|EG|PS|QA|UA 26JO|KW|MU|YE 27MT|SC 28LC 29RU"
)
"""Countries of the IBAN registry by the characters of their numbers after the checksum."""
_IBAN = either(
    rf"\b(?:{names})\d\d(?:[ \-]?[A-Z0-9]){{{left}}}" for left, names in re.findall(r"(\d+)(\S+)", _COUNTRIES)
)


def _number_end(text: bytes, start: int, end: int) -> int:
    """Return the end of a number, without what `_END` has matched, or 0 if it is a part of a longer one."""
    end -= not text[end - 1 : end].isdigit()
    inside = text[start : start + 1].isdigit() and before(text, start).isdigit()
    return 0 if inside or text[end : end + 1].isdigit() else end


def _digits(text: bytes) -> list[int]:
    return [each - 48 for each in text if 48 <= each < 58]


def _card_end(text: bytes, start: int, end: int) -> int:
    """Check by Luhn's formula (ISO/IEC 7812-1)."""
    end = _number_end(text, start, end)
    digits = _digits(text[start:end])
    total = sum(digits[-1::-2]) + sum(2 * each - 9 * (each > 4) for each in digits[-2::-2])
    return end if len(digits) >= 13 and total % 10 == 0 else 0


def _phone_end(text: bytes, start: int, end: int) -> int:
    end = _number_end(text, start, end)
    return end if len(_digits(text[start:end])) >= 7 else 0


def _iban_end(text: bytes, start: int, end: int) -> int:
    """Check by the remainder modulo 97 (ISO 13616)."""
    number = re.sub(rb"[ \-]", b"", text[start:end]).decode()
    turned = "".join(str(int(each, 36)) for each in number[4:] + number[:4])
    return end if int(turned) % 97 == 1 and not in_word(before(text, start)) else 0


PERSONAL_DATA: dict[str, tuple[str, Callable[[bytes, int, int], int]]] = {
    "card": (rf"[2-6](?:{_DASH}?\d){{12,18}}{_END}", _card_end),
    "iban": (f"(?i:{_IBAN})", _iban_end),
    "email": (
        rf"{_LOCAL}{{1,64}}@(?:{_LABEL}{{1,63}}\.){{1,4}}[A-Za-z]{{2,24}}",
        lambda text, start, end: end,
    ),
    "phone": (
        rf"(?:\+\d(?:[ ./()\-]{{0,3}}\d){{6,14}}|00[1-9](?:[ ./()\-]{{0,2}}\d){{6,13}}"
        rf"|\(\d{{3}}\) ?\d{{3}}{_DASH}\d{{4}}|\d{{3}}{_DASH}\d{{3}}{_DASH}\d{{4}}){_END}",
        _phone_end,
    ),
}
"""What is found by its type: its pattern, and what returns the end of a valid match."""
