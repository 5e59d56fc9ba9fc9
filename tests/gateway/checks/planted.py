"""Texts with something planted in them that the checks of CHECKS must find, whatever surrounds it and however it is cut
into pieces."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

DENIED = ("forbidden", "Project Falcon", "état", "кофе")
CHECKS: list[dict[str, Any]] = [
    {"kind": "pii", "action": "redact", "at": "after"},
    {
        "kind": "deny",
        "name": "words",
        "words": [*DENIED, "機密"],
        "patterns": [r"\bACME-\d{4,8}\b"],
        "action": "redact",
        "at": "after",
    },
]
_FILLING = (
    *(
        "Hello ",
        "the ",
        "I am 24, ",
        "2024-05-06 ",
        "x@y ",
        "DE ",
        "DE89 37 ",
        "forbid ",
        "Project ",
        "12 ",
        "(555 ",
        "+4 ",
    ),
    *("state ", "4111 1111 ", "a.b@c ", "naïve ", "日本語 ", "ACME- ", "(1, 2.5) ", "\n", "\u200b"),
)


class Planted(NamedTuple):
    text: str
    secret: str

    def is_in(self, text: str) -> bool:
        """Whether a reader finds the secret in a text, whatever stands between its characters."""
        return _bare(self.secret) in _bare(text)


def _bare(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFKD", text).casefold() if each.isalnum())


def card(luck: random.Random) -> str:
    digits = [luck.choice((3, 4, 5)), *(luck.randrange(10) for _ in range(luck.choice((13, 14, 15)) - 1))]
    total = sum(digits[-2::-2]) + sum(sum(divmod(2 * each, 10)) for each in digits[::-2])
    number = "".join(map(str, (*digits, -total % 10)))
    gap = luck.choice(("", " ", "-", "\u2011"))
    return gap.join(number[start : start + 4] for start in range(0, len(number), 4))


def iban(luck: random.Random) -> str:
    country, length = luck.choice((("DE", 22), ("GB", 22), ("NO", 15), ("FR", 27), ("MT", 31)))
    body = "".join(luck.choice("0123456789ABCDEF") for _ in range(length - 4))
    value = int("".join(str(int(each, 36)) for each in f"{body}{country}00"))
    number = f"{country}{98 - value % 97:02}{body}"
    number = luck.choice((number, number.lower()))
    return luck.choice(("", " ")).join(number[start : start + 4] for start in range(0, length, 4))


def email(luck: random.Random) -> str:
    return luck.choice(("jane.doe@example.com", "x+1@mail.example.co.uk", "O'Neil@tea-house.org", "a_b@c.io"))


def phone(luck: random.Random) -> str:
    last = "".join(luck.choices("0123456789", k=7))
    return luck.choice(
        (f"+49 30 {last}", f"(555) {last[:3]}-{last[3:]}", f"555.{last[:3]}.{last[3:]}", f"004930{last}")
    )


def denied(luck: random.Random) -> str:
    word = luck.choice((*DENIED, "機密", "ACME-123456"))
    word = word.replace(" ", luck.choice((" ", "\u2028", " \t\x1f ", " " * 9, "\x85" * 300)))
    return luck.choice((str, str.upper, str.title))(word) if "ACME" not in word else word


_KINDS: tuple[Callable[[random.Random], str], ...] = (card, iban, email, phone, denied)


def _disguised(secret: str, luck: random.Random) -> str:
    """Return a secret with other characters that look the same, or with some that are not seen."""
    if luck.random() < 0.2:
        return "".join(chr(ord(each) + 0xFEE0) if each.isascii() and each.isalnum() else each for each in secret)
    if luck.random() < 0.2:
        return unicodedata.normalize("NFD", luck.choice(("\u200b", "\u2060", "\u00ad")).join(secret))
    return secret


def planted(count: int, seed: int = 1) -> Iterator[Planted]:
    """Yield as many texts, the same for a seed."""
    luck = random.Random(seed)
    for number in range(count):
        secret = _disguised(_KINDS[number % len(_KINDS)](luck), luck)
        before, after = ("".join(luck.choices(_FILLING, k=luck.randrange(4))) for _ in range(2))
        ends = (".", ", ", "\n", ")", *(("USD", "x5", "_") if number % len(_KINDS) in (0, 3) else ()))
        yield Planted(before + luck.choice(("", "(", ": ", '"')) + secret + luck.choice(ends) + after, secret)
