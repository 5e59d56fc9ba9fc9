"""The list `checks` of the routes file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, AnyHttpUrl, BaseModel, ConfigDict, Field, model_validator

from inflight.gateway.checks.patterns import PERSONAL_DATA, checked, either, word_end, word_pattern
from inflight.gateway.checks.text_gate import Action, Rule, Rules

Place = Literal["before", "after"]
MAX_WORDS = 1000
"""Words and patterns of all checks together, so that a search takes microseconds."""
_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_Type = Literal["card", "iban", "email", "phone"]
_Cuts = Literal["block", "flag"]
"""What a check does that can only refuse a text, or note it."""


class _Check(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field("", pattern=r"^[A-Za-z0-9_-]{1,40}$")
    """In metrics, in the audit log and in the place of what is cut."""
    at: Literal["before", "after", "both"] = "both"
    models: tuple[str, ...] = ()
    """The names that applications send; none: all."""
    action: Action = "block"

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: dict[str, object]) -> dict[str, object]:
        return {"name": values["kind"], **values}

    def applies(self, place: Place, model: str) -> bool:
        return self.at in (place, "both") and (not self.models or model in self.models)

    def rules(self) -> Iterator[Rule]:
        """Yield what is looked for in a text."""
        yield from ()


class DenyCheck(_Check):
    """Words, whole and in any case, and patterns of RE2."""

    kind: Literal["deny"]
    words: tuple[_Text, ...] = ()
    patterns: tuple[Annotated[_Text, AfterValidator(checked)], ...] = ()

    @model_validator(mode="after")
    def _has_patterns(self) -> Self:
        if not self.words and not self.patterns:
            raise ValueError("it has no words and no patterns; add some")
        for each in self.words:
            checked(word_pattern(each))
        return self

    def rules(self) -> Iterator[Rule]:
        if self.words:
            yield Rule(self.name, self.action, self.name, either(map(word_pattern, self.words)), word_end)
        if self.patterns:
            yield Rule(self.name, self.action, self.name, either(self.patterns))


class PiiCheck(_Check):
    """Personal data by its form and checksum."""

    kind: Literal["pii"]
    action: Action = "redact"
    types: tuple[_Type, ...] = Field(("card", "iban", "email", "phone"), min_length=1)

    def rules(self) -> Iterator[Rule]:
        for each in self.types:
            yield Rule(self.name, self.action, each, *PERSONAL_DATA[each])


class SizeCheck(_Check):
    """Characters of all texts of a request, or of an answer."""

    kind: Literal["size"]
    action: _Cuts = "block"
    max_characters: int = Field(gt=0)


class _Asks(_Check):
    on_error: Literal["open", "closed"]
    """What happens to a text while the check gives no verdict: it passes, or is blocked."""
    timeout: float = Field(2.0, gt=0, le=60)
    """Seconds that a verdict may take."""


class ClassifierCheck(_Asks):
    """A served model that classifies texts; one has been found if any of the labels has this probability."""

    kind: Literal["classifier"]
    action: _Cuts = "block"
    model: str = Field(min_length=1)
    labels: tuple[str, ...] = Field(min_length=1)
    threshold: float = Field(0.5, gt=0, le=1)


class HookCheck(_Asks):
    """A URL that gets the texts by POST."""

    kind: Literal["hook"]
    url: AnyHttpUrl


Asked = ClassifierCheck | HookCheck
CheckSpec = Annotated[DenyCheck | PiiCheck | SizeCheck | ClassifierCheck | HookCheck, Field(discriminator="kind")]


class Stage(NamedTuple):
    """What applies to the texts of a model at one place. Those that `flag` hold nothing back, so they are apart."""

    rules: Rules | None
    flags: Rules | None
    sizes: Sequence[SizeCheck]
    asked: Sequence[Asked]


_compiled = lru_cache(16)(Rules)  # the stages of several models have the same ones


def stage_of(checks: Sequence[CheckSpec], place: Place, model: str) -> Stage:
    """Return what applies."""
    applying = [each for each in checks if each.applies(place, model)]
    rules = [rule for each in applying for rule in each.rules()]
    acting, flags = (tuple(each for each in rules if (each.action == "flag") is kind) for kind in (False, True))
    return Stage(
        _compiled(acting) if acting else None,
        _compiled(flags) if flags else None,
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
    Rules([rule for each in checks for rule in each.rules()])
