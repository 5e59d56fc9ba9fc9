"""Reads and checks values of a config.json, which is untrusted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from build_engines.errors import BuildError

_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,100}", re.ASCII)
# No model comes near; products of a dozen such sizes are still finite.
_MAX_VALUE = 10**9
_MAX_SHOWN = 40


@dataclass(frozen=True)
class ConfigFile:
    """The parsed config.json of the checkpoint `where`. Null counts as absent.

    `purpose` is the participle in the error: "can't be built". All readers raise BuildError (`not_a_checkpoint`) for a
    value of the wrong type.
    """

    content: dict[str, Any]
    where: str
    purpose: str = "planned"

    def size(self, *names: str, least: int = 1, most: int = _MAX_VALUE) -> int:
        """Return the first of `names` that is present, a whole number."""
        value = self.optional(*names, least=least, most=most)
        if value is None:
            raise self.error(f"{names[0]} is missing")
        return value

    def optional(self, *names: str, least: int = 1, most: int = _MAX_VALUE) -> int | None:
        """Return the first of `names` that is present, a whole number; None without any."""
        for name in names:
            value = self.content.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self.error(f"{name} is {_shorten(value)}")
            if value > most:
                raise self.error(f"{name} is {_shorten(value)}, more than any model has")
            return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        """Return a JSON boolean."""
        value = self.content.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} is {_shorten(value)}")
        return value

    def identifier(self, name: str) -> str | None:
        """Return a name without spaces; None if absent."""
        value = self.content.get(name)
        if value is None:
            return None
        return self._checked(name, value)

    def first_identifier(self, name: str) -> str | None:
        """Return the first name of a list; None if the list is absent or empty."""
        value = self.content.get(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list):
            raise self.error(f"{name} is {_shorten(value)}")
        return self._checked(name, value[0])

    def part(self, name: str) -> ConfigFile | None:
        """Return a nested object; None if absent or empty."""
        value = self.content.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{name} is {_shorten(value)}")
        return ConfigFile(value, self.where, self.purpose)

    def error(self, what: str) -> BuildError:
        return BuildError(
            f"The config.json of {self.where} can't be {self.purpose}: {what}; fetch the checkpoint again.",
            "not_a_checkpoint",
        )

    def _checked(self, name: str, value: object) -> str:
        if not isinstance(value, str) or not _WORD.fullmatch(value):
            raise self.error(f"{name} is {_shorten(value)}")
        return value


def _shorten(value: object) -> str:
    """Return a value for an error message: short, on one line, and printable."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
