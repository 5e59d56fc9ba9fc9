"""Personal data by its form and its checksum."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from inflight.gateway.checks.patterns import (
    Pattern,
    Valid,
    any_match,
    before,
    either,
    ignoring_case,
    in_word,
    pattern_of,
)

_DASH = r"[ .\-\u2010-\u2015]"
_END = r"(?:\b|[A-Za-z_])"
"""Of a number; so the many places of a long one at which none begins are passed over at once."""
_LOCAL, _LABEL = r"[A-Za-z0-9._%+'\-]", r"[A-Za-z0-9\-]"
_COUNTRIES = (
    "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29ES24FI18FK18FO18FR27GB22"
    "GE22GI23GL18GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MN20"
    "MR27MT31MU30NI28NL18NO15OM23PK24PL28PS29PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23TN24TR26"
    "UA29VA22VG24XK20YE30"
)
"""Countries of the IBAN registry, each with the characters of its numbers."""


def _number_end(text: bytes, start: int, end: int, is_one: Callable[[list[int]], bool]) -> int:
    """Return the end of the longest number that is one, of whole groups of digits; 0 if there is none."""
    if text[start : start + 1].isdigit() and before(text, start).isdigit():
        return 0
    for at in range(end, start, -1):
        is_end = text[at - 1 : at].isdigit() and not text[at : at + 1].isdigit()
        if is_end and is_one([each - 48 for each in text[start:at] if 48 <= each < 58]):
            return at
    return 0


def _is_card(digits: list[int]) -> bool:
    """Check by Luhn's formula (ISO/IEC 7812-1)."""
    total = sum(digits[-1::-2]) + sum(2 * each - 9 * (each > 4) for each in digits[-2::-2])
    return len(digits) >= 13 and total % 10 == 0


def _card(text: bytes, start: int, end: int) -> int:
    return _number_end(text, start, end, _is_card)


def _phone(text: bytes, start: int, end: int) -> int:
    return _number_end(text, start, end, lambda digits: len(digits) >= 7)


def _iban(text: bytes, start: int, end: int) -> int:
    """Check by the remainder modulo 97 (ISO 13616)."""
    number = re.sub(rb"[^A-Za-z0-9]", b"", text[start:end]).decode()
    turned = "".join(str(int(each, 36)) for each in number[4:] + number[:4])
    return end if int(turned) % 97 == 1 and not in_word(before(text, start)) else 0


def _iban_pattern() -> Pattern:
    by_length: defaultdict[int, list[str]] = defaultdict(list)
    for country, length in re.findall(r"([A-Z]{2})(\d\d)", _COUNTRIES):
        by_length[int(length) - 4].append(country)
    each = (
        rf"\b(?:{'|'.join(names)})\d\d(?:[ \-]?[A-Z0-9]){{{length}}}" for length, names in sorted(by_length.items())
    )
    return ignoring_case(either([pattern_of(one) for one in each]))


PERSONAL_DATA: dict[str, tuple[Pattern, Valid]] = {
    "card": (pattern_of(rf"[2-6](?:{_DASH}?\d){{12,18}}{_END}"), _card),
    "iban": (_iban_pattern(), _iban),
    "email": (pattern_of(rf"{_LOCAL}{{1,64}}@(?:{_LABEL}{{1,63}}\.){{1,4}}[A-Za-z]{{2,24}}"), any_match),
    "phone": (
        pattern_of(
            rf"(?:\+\d(?:[ ./()\-]{{0,3}}\d){{6,14}}|00[1-9](?:[ ./()\-]{{0,2}}\d){{6,13}}"
            rf"|\(\d{{3}}\) ?\d{{3}}{_DASH}\d{{4}}|\d{{3}}{_DASH}\d{{3}}{_DASH}\d{{4}}){_END}"
        ),
        _phone,
    ),
}
"""What is found by its type."""
