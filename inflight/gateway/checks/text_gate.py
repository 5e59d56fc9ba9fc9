"""What rules do to a text that arrives in pieces. It holds back the beginning of what may be a match, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from inflight.gateway.checks.patterns import EXCESS, MAX_SPACES, SPACES, compiled, either, normal

Action = Literal["block", "redact", "flag"]
_CONTEXT_BYTES = 4
"""Of the text before what is searched, for the boundaries of words: its last character."""
_MAX_TRIES = 50_000
_has_excess = EXCESS.search
_QUOTE = "\0"
"""Stands for the quotes around a string of JSON, so that they are none of its text."""
_UNIT = re.compile(r"\\u[dD][89abAB]\w\w\\u\w{4}|\\u\w{4}|\\.|.", re.DOTALL)
_UNFINISHED = re.compile(r"\\(u\w{0,3}|u[dD][89abAB]\w\w(\\(u\w{0,3})?)?)?\Z")


class TooMuchError(Exception):
    """A text, or a piece of one, has too many places at which something may begin. `check` is one that looks for it."""

    def __init__(self, check: str) -> None:
        self.check = check


class Rule(NamedTuple):
    """What is looked for, and what then happens; a redacted text has `[label]` in its place.

    `end` returns where what is looked for ends in a text, of what the pattern matches from one place to another; or 0.
    """

    check: str
    action: Action
    label: str
    pattern: str
    end: Callable[[bytes, int, int], int] = lambda text, start, end: end


class Rules:
    """Rules of which one search finds the first match."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Raises ValueError for rules that RE2 refuses."""
        self._rules = [(each, compiled(each.pattern)) for each in sorted(rules, key=lambda each: each.action)]
        self.first = rules[0].check if rules else ""
        both = either(each.pattern for each in rules)
        self.whole, self.begun = compiled(both), compiled(both, begun=True)
        """The second finds also what may be the beginning of a match, at the end of a text: at least nothing."""

    def at(self, text: bytes, start: int) -> tuple[Rule, int] | None:
        """Return the rule that matches at a place, one that blocks first, and the end of its longest valid match."""
        for rule, pattern in self._rules:
            found = pattern.match(text, start)
            while found is not None and found.end() > start:
                if end := rule.end(text, start, found.end()):
                    return rule, end
                found = pattern.match(text, start, found.end() - 1)
        return None


class TextGate:
    """A text on its way through rules. Once one of them blocks, it must not go on."""

    def __init__(self, rules: Rules, note: Callable[[Rule], None], in_json: bool = False) -> None:
        """`note` is called for each match. `in_json`: the text is JSON, whose escapes are compared by their meaning."""
        self._rules, self._note, self._in_json = rules, note, in_json
        self._normal = b""
        """As it is compared: what is held, after some of what was passed on."""
        self._raw: list[str] = []
        """As it came, what is held: the text of each byte of its normal form, from `_sent` on."""
        self._start = self._sent = 0
        """Where in `_normal` the next match may begin, and what is not passed on yet."""
        self._unseen = self._unfinished = ""
        """What came after the last byte of the normal form: what is not seen, and an escape without its end."""
        self._quotes = 0

    def feed(self, text: str, final: bool = False) -> str:
        """Return what may be passed on after the next piece.

        With `final` nothing is held back: there is no more, or something else comes first. What goes on after that and
        completes a match is cut. Raises TooMuchError for a piece that takes seconds.
        """
        rules, base, sent, start = self._rules, self._sent, self._sent, self._start
        known, raw = self._units(text, final)
        held = self._raw + raw
        passed, decided, tries = "", start, 0
        search = (rules.whole if final else rules.begun).search
        while (found := search(known, start)) is not None:
            start, end = found.span()
            if end == len(known) and not final:
                break  # it may go on
            tries += 1
            if tries > _MAX_TRIES:
                raise TooMuchError(rules.first)
            if (hit := rules.at(known, start)) is None:
                start += 1
                continue
            rule, end = hit
            self._note(rule)
            passed += "".join(held[sent - base : max(0, start - base)])
            if rule.action == "block":
                return passed
            passed += self._label(rule, known, start)
            start, sent, decided = end, max(sent, end), end
        else:
            start = len(known)
        passed += "".join(held[sent - base : max(0, start - base)])
        sent = max(sent, start)
        if final:
            start = rules.begun.search(known, decided).start()
            passed, self._unseen = passed + self._unseen, ""
        dropped = max(0, start - _CONTEXT_BYTES)
        if self._in_json:
            self._quotes += known.count(b"\0", 0, dropped)
        self._raw, self._normal = held[sent - base :], known[dropped:]
        self._start, self._sent = start - dropped, sent - dropped
        return passed

    def _label(self, rule: Rule, text: bytes, start: int) -> str:
        is_string = not self._in_json or (self._quotes + text.count(b"\0", 0, start)) % 2
        return f"[{rule.label}]" if is_string else f'"[{rule.label}]"'

    def _units(self, text: str, final: bool) -> tuple[bytes, list[str]]:
        """Return the normal form with that of a piece, and what came for each byte of the latter."""
        if text.isascii() and not (self._in_json or self._unseen or "\0" in text):
            known = self._normal + text.encode()
            if _has_excess(known, len(self._normal) - MAX_SPACES) is None:
                return known, list(text)
        form, raw = bytearray(self._normal), list[str]()
        spaces = len(form) - len(form.rstrip(SPACES))
        for came, char in self._escaped(text, final) if self._in_json else zip(text, text, strict=True):
            self._unseen += came
            if added := (char if self._in_json and char == _QUOTE else normal(char)).encode():
                spaces = spaces + 1 if added in SPACES else 0
                if spaces <= MAX_SPACES:
                    form += added
                    raw += (self._unseen, *("" for _ in added[1:]))
                    self._unseen = ""
        return bytes(form), raw

    def _escaped(self, text: str, final: bool) -> Iterator[tuple[str, str]]:
        """Yield the characters of JSON as they came, and as they are meant."""
        text, self._unfinished = self._unfinished + text, ""
        if not final and (found := _UNFINISHED.search(text)):
            text, self._unfinished = text[: found.start()], text[found.start() :]
        for came in _UNIT.findall(text):
            char = came
            if len(came) > 1:
                try:
                    char = json.loads(f'"{came}"')
                except ValueError:  # no valid escape
                    char = came[1:]
            yield came, _QUOTE if came == '"' else char.replace("\0", "")


def whole_text(text: str, rules: Rules, note: Callable[[Rule], None], in_json: bool = False) -> str:
    """Return a whole text as rules leave it. Raises TooMuchError for one that takes seconds."""
    if not in_json and rules.whole.search(EXCESS.sub(rb"\1", normal(text).encode())) is None:
        return text  # far faster than character by character
    return TextGate(rules, note, in_json).feed(text, final=True)
