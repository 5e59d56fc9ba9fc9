"""What rules do to a text that arrives in pieces. It holds back the beginning of what may be a match, and no more."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from inflight.gateway.checks.patterns import NORMAL, Pattern, Valid, compiled, either, is_word, normal

Action = Literal["block", "redact", "flag"]
_CONTEXT_BYTES = 4
"""Of the text before what is searched, for the boundaries of words: its last character."""
_MAX_TRIES = 100_000
_QUOTE = "\0"
"""Stands for the quotes around a string of JSON, so that they are none of its text."""
_UNIT = re.compile(r"\\u[dD][89abAB]\w\w\\u\w{4}|\\u\w{4}|\\.|.", re.DOTALL)
_UNFINISHED = re.compile(r"\\(u\w{0,3}|u[dD][89abAB]\w\w(\\(u\w{0,3})?)?)?\Z")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class TooMuchError(Exception):
    """A text has too many places at which something may begin."""


class Rule(NamedTuple):
    """What is looked for, and what then happens; a redacted text has `[label]` in its place."""

    check: str
    action: Action
    label: str
    pattern: Pattern
    valid: Valid


class Rules:
    """Rules of which one search finds the first match."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Raises ValueError for rules that RE2 refuses."""
        self._rules = [(each, compiled(each.pattern.whole)) for each in sorted(rules, key=lambda each: each.action)]
        both = either([each.pattern for each in rules])
        self.whole = compiled(both.whole)
        self.begun = compiled(rf"{both.whole}|(?:{both.begun})\z")
        """Finds also what may be the beginning of a match, at the end of a text."""

    def at(self, text: bytes, start: int) -> tuple[Rule, int] | None:
        """Return the rule that matches at a place, one that blocks first, and the end of its match."""
        for rule, pattern in self._rules:
            found = pattern.match(text, start)
            while found is not None:
                if end := rule.valid(text, start, found.end()):
                    return rule, end
                found = pattern.match(text, start, found.end() - 1) if rule.valid is is_word else None
        return None


class TextGate:
    """A text on its way through rules. Once one of them blocks, it must not go on."""

    def __init__(self, rules: Rules, note: Callable[[Rule], None], in_json: bool = False) -> None:
        """`note` is called for each match. `in_json`: the text is JSON, whose escapes are compared by their meaning."""
        self._rules, self._note, self._in_json = rules, note, in_json
        self._normal = b""
        """As it is compared: what is held, after some of what was passed on."""
        self._raw: Sequence[str] = ""
        """As it came, what is held: the text of each byte of its normal form, from `_sent` on."""
        self._start = self._sent = 0
        """Where in `_normal` the next match may begin, and what is not passed on yet."""
        self.tries = math.inf
        """Of what may be matches, how many are looked at before TooMuchError is raised."""
        self._unfinished = ""
        self._quotes = 0

    def feed(self, text: str, final: bool = False) -> str:
        """Return what may be passed on after the next piece.

        With `final` nothing is held back: there is no more, or something else comes first. What goes on after that and
        completes a match is cut.
        """
        rules, lead = self._rules, ""
        if text.isascii() and not self._in_json:
            added, raw = text.encode(), text
            if isinstance(self._raw, str) and not final:  # most pieces have no match, and this is fast
                known = self._normal + added
                found = rules.begun.search(known, self._start)
                start, end = (len(known), len(known)) if found is None else found.span()
                if end == len(known) and start >= self._sent:
                    at, together = start - self._sent, self._raw + text
                    self._raw = together[at:]
                    self._keep(known, start, start)
                    return together[:at]
        else:
            lead, added, raw = self._units(text, final)  # type: ignore[assignment]
        known, base, sent = self._normal + added, self._sent, self._sent
        held: Sequence[str] = raw
        if self._raw:
            held = [*self._raw[:-1], self._raw[-1] + lead, *raw]
            lead = ""
        passed, start, decided = [lead], self._start, self._start
        search = (rules.whole if final else rules.begun).search
        while (found := search(known, start)) is not None:
            start = found.start()
            if found.end() == len(known) and not final:
                break  # it may go on
            self.tries -= 1
            if self.tries < 0:
                raise TooMuchError
            hit = rules.at(known, start)
            if hit is None:
                start += 1
                continue
            rule, end = hit
            self._note(rule)
            if rule.action != "flag":
                passed.append(_joined(held[max(0, sent - base) : max(0, start - base)]))
                if rule.action == "block":
                    self._raw = ""
                    return "".join(passed)
                passed.append(self._label(rule, known, start))
                sent = max(sent, end)
            start = decided = end
        else:
            start = len(known)
        passed.append(_joined(held[max(0, sent - base) : max(0, start - base)]))
        sent = max(sent, start)
        self._raw = held[sent - base :]
        if final and (begun := rules.begun.search(known, decided)):
            start = begun.start()
        self._keep(known, start, sent)
        return "".join(passed)

    def _keep(self, text: bytes, start: int, sent: int) -> None:
        dropped = start - _CONTEXT_BYTES if start > _CONTEXT_BYTES else 0
        if self._in_json:
            self._quotes += text.count(b"\0", 0, dropped)
        self._normal, self._start, self._sent = text[dropped:], start - dropped, sent - dropped

    def _label(self, rule: Rule, text: bytes, start: int) -> str:
        label = f"[{rule.label}]"
        is_string = not self._in_json or (self._quotes + text.count(b"\0", 0, start)) % 2
        return label if is_string else f'"{label}"'

    def _units(self, text: str, final: bool) -> tuple[str, bytes, list[str]]:
        """Return the normal form of a piece, and what came for each of its bytes; before it what has no such form."""
        lead, added, raw = "", bytearray(), list[str]()
        for came, char in self._escaped(text, final) if self._in_json else zip(text, text, strict=True):
            if form := "".join(map(NORMAL.__getitem__, char)).encode():
                added += form
                raw += (came, *("" for _ in form[1:]))
            elif raw:
                raw[-1] += came
            else:
                lead += came
        return lead, bytes(added), raw

    def _escaped(self, text: str, final: bool) -> Iterator[tuple[str, str]]:
        """Yield the characters of JSON as they came, and as they are meant."""
        text, self._unfinished = self._unfinished + text, ""
        if not final and (found := _UNFINISHED.search(text)):
            text, self._unfinished = text[: found.start()], text[found.start() :]
        for came in _UNIT.findall(text):
            if came == '"':
                yield came, _QUOTE
            elif came[:2] == "\\u" and len(came) > 2:
                yield came, _decoded(came)
            elif came[0] == "\\":
                yield came, _ESCAPES.get(came[1:], came[1:])
            else:
                yield came, came


def whole_text(text: str, rules: Rules, note: Callable[[Rule], None], in_json: bool = False) -> str:
    """Return a whole text as rules leave it. Raises TooMuchError for one that takes seconds."""
    if not in_json and rules.whole.search(normal(text).encode()) is None:
        return text  # far faster than character by character
    gate = TextGate(rules, note, in_json)
    gate.tries = _MAX_TRIES
    return gate.feed(text, final=True)


def _joined(raw: Sequence[str]) -> str:
    return raw if isinstance(raw, str) else "".join(raw)


def _decoded(escape: str) -> str:
    try:
        units = [int(each, 16) for each in escape.split("\\u")[1:]]
    except ValueError:
        return escape
    return b"".join(each.to_bytes(2, "big") for each in units).decode("utf-16-be", "replace")
