"""The list `checks` of the routes file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inflight.gateway.checks.patterns import Pattern, any_match, either, is_word, pattern_of, word_pattern
from inflight.gateway.checks.personal_data import PERSONAL_DATA
from inflight.gateway.checks.text_gate import Action, Rule, Rules

Place = Literal["before", "after"]
MAX_WORDS = 1000
"""Words and patterns of all checks together, so that a search takes microseconds."""
_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
"""In metrics, in the audit log and in the place of what is cut."""


class _Check(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    at: Literal["before", "after", "both"] = "both"
    models: tuple[str, ...] = ()
    """The names that applications send; none: all."""
    action: Action = "block"

    def applies(self, place: Place, model: str) -> bool:
        return self.at in (place, "both") and (not self.models or model in self.models)

    def rules(self) -> Iterator[Rule]:
        """Yield what is looked for in a text."""
        yield from ()


class _Cuts(_Check):
    """A check that can only refuse a text, or note it."""

    action: Literal["block", "flag"] = "block"


class DenyCheck(_Check):
    """Words, whole and in any case, and patterns of RE2."""

    kind: Literal["deny"]
    name: _Name = "deny"
    words: tuple[_Text, ...] = ()
    patterns: tuple[_Text, ...] = ()

    @model_validator(mode="after")
    def _has_patterns(self) -> Self:
        if not list(self.rules()):
            raise ValueError("it has no words and no patterns; add some")
        return self

    def rules(self) -> Iterator[Rule]:
        if self.words:
            yield Rule(self.name, self.action, self.name, either([word_pattern(each) for each in self.words]), is_word)
        if self.patterns:
            found: list[Pattern] = []
            for place, each in enumerate(self.patterns):
                try:
                    found.append(pattern_of(each))
                except ValueError as error:
                    raise ValueError(f"patterns.{place}: {error}") from None
            yield Rule(self.name, self.action, self.name, either(found), any_match)


class PiiCheck(_Check):
    """Personal data by its form and checksum."""

    kind: Literal["pii"]
    name: _Name = "pii"
    action: Action = "redact"
    types: tuple[Literal["card", "iban", "email", "phone"], ...] = Field(
        ("card", "iban", "email", "phone"), min_length=1
    )

    def rules(self) -> Iterator[Rule]:
        for each in self.types:
            yield Rule(self.name, self.action, each, *PERSONAL_DATA[each])


class SizeCheck(_Cuts):
    """Characters of all texts of a request, or of an answer."""

    kind: Literal["size"]
    name: _Name = "size"
    max_characters: int = Field(gt=0)


class _Asks(_Check):
    on_error: Literal["open", "closed"]
    """What happens to a text while the check gives no verdict: it passes, or is blocked."""
    timeout: float = Field(2.0, gt=0, le=60)
    """Seconds that a verdict may take."""


class ClassifierCheck(_Asks, _Cuts):
    """A served model that classifies texts; one has been found if any of the labels has this probability."""

    kind: Literal["classifier"]
    name: _Name = "classifier"
    model: str = Field(min_length=1)
    labels: tuple[str, ...] = Field(min_length=1)
    threshold: float = Field(0.5, gt=0, le=1)


class HookCheck(_Asks):
    """A URL that gets the texts by POST."""

    kind: Literal["hook"]
    name: _Name = "hook"
    url: str

    @model_validator(mode="after")
    def _is_url(self) -> Self:
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"the url {self.url[:100]!r} must begin with http:// or https:// and name a host")
        return self


Asked = ClassifierCheck | HookCheck
CheckSpec = Annotated[DenyCheck | PiiCheck | SizeCheck | ClassifierCheck | HookCheck, Field(discriminator="kind")]


@dataclass(frozen=True)
class Stage:
    """What applies to the texts of a model at one place. Those that `flag` hold nothing back, so they are apart."""

    rules: Rules | None = None
    flags: Rules | None = None
    sizes: Sequence[SizeCheck] = ()
    asked: Sequence[Asked] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.rules or self.flags or self.sizes or self.asked)


_compiled = lru_cache(16)(Rules)  # the same ones are used by the stages of several models, and by the check of a file


def stage_of(checks: Sequence[CheckSpec], place: Place, model: str) -> Stage:
    """Return what applies. Raises ValueError for more words and patterns than can be searched at once."""
    applying = [each for each in checks if each.applies(place, model)]
    rules = [rule for each in applying for rule in each.rules()]
    acting, flags = ([each for each in rules if (each.action == "flag") is kind] for kind in (False, True))
    return Stage(
        _compiled(tuple(acting)) if acting else None,
        _compiled(tuple(flags)) if flags else None,
        [each for each in applying if isinstance(each, SizeCheck)],
        [each for each in applying if isinstance(each, Asked)],
    )


def check_list(checks: Sequence[CheckSpec]) -> None:
    """Raise ValueError for a list that can't be used."""
    names = [each.name for each in checks]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two checks have the name {twice}; name each differently")
    if sum(len(each.words) + len(each.patterns) for each in checks if isinstance(each, DenyCheck)) > MAX_WORDS:
        raise ValueError(f"the checks have more than {MAX_WORDS} words and patterns; ask a hook instead")
    for model in {"", *(name for each in checks for name in each.models)}:
        stage_of(checks, "before", model)
        stage_of(checks, "after", model)
