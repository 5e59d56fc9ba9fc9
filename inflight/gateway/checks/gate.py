"""Takes texts through the checks of one place: those of a request, or those of a choice of an answer as they come."""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from inflight.gateway.checks.judges import FAILURES, Judges
from inflight.gateway.checks.specs import Place, Stage
from inflight.gateway.checks.text_gate import Rule, TextGate, TooMuchError, whole_text
from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart, events_of
from inflight.openai_api.response import Choice
from inflight.openai_api.token_text import TokenLogprob

BLOCKED = "content_filter"
"""The finish reason of a choice whose rest was blocked, and the code of a refused request."""
_Name = str | int
logger = logging.getLogger("inflight.gateway")


class Gate:
    """`changed` once anything was cut; `blocked` is the check that has blocked the rest, `failed` if by no verdict."""

    def __init__(
        self, stage: Stage, judges: Judges, place: Place, model: str, note: Callable[[Place, str, str], None]
    ) -> None:
        """`note` is called with the place, a check and what it did."""
        self._stage, self._judges, self._place, self._model, self._note = stage, judges, place, model, note
        self._gates: dict[_Name, TextGate] = {}
        self.texts: defaultdict[_Name, list[str]] = defaultdict(list)
        """What has passed of each text."""
        self._size = 0
        self.changed = self.failed = False
        self.blocked = ""

    def pass_on(self, name: _Name, text: str, final: bool = False, in_json: bool = False) -> str:
        """Return what may be passed on after the next piece of a text; a `final` one with text is all of it."""
        rules = self._stage.rules
        if rules is not None and final and text:
            text = whole_text(text, rules, self._found, in_json)
        elif rules is not None:
            if name not in self._gates:
                self._gates[name] = TextGate(rules, self._found, in_json)
            text = self._gates[name].feed(text, final)
        for check in self._stage.sizes:
            if 0 <= (left := check.max_characters - self._size) < len(text):
                self._did(check.name, check.action)
                text = text[:left] if check.action == "block" else text
        self._size += len(text)
        self.texts[name].append(text)
        return text

    async def judge(self) -> None:
        """Take the whole texts through the checks that flag them, or judge them. A hook may change `texts`."""
        for text in map("".join, self.texts.values()):
            if self._stage.flags is not None:
                with suppress(TooMuchError):
                    whole_text(text, self._stage.flags, self._found)
        for check in self._stage.asked:
            if self.blocked or not self.texts:
                return
            name, sent = check.name, list(map("".join, self.texts.values()))
            try:
                flagged, left = await self._judges.verdict(check, self._place, self._model, sent)
            except FAILURES as error:
                logger.warning("the check %s gave no verdict: %s", name, str(error) or type(error).__name__)
                self._note(self._place, name, "failed")
                if check.on_error == "closed" and check.action != "flag":
                    self.blocked, self.failed = name, True
                continue
            if flagged:
                self._did(name, check.action)
            if left != sent:
                self.changed = True
                self.texts.update(zip(self.texts, ([text] for text in left), strict=True))

    def _found(self, rule: Rule) -> None:
        self._did(rule.check, rule.action)

    def _did(self, check: str, action: str) -> None:
        self._note(self._place, check, action)
        self.changed = self.changed or action != "flag"
        if action == "block":
            self.blocked = check


class ChoiceGate(Gate):
    """A choice: its text, its reasoning, and the arguments of each of its calls, by its number."""

    def __init__(self, *of_gate: Any, in_json: bool = False) -> None:
        """`in_json`: the text is JSON, as the arguments are."""
        super().__init__(*of_gate)
        self._in_json = in_json
        self._open: _Name | None = None
        self._held: list[Event] = []
        self._holds = any(each.action != "flag" for each in self._stage.asked)
        """Whether all waits for a verdict."""
        self._is_simple = not (self._stage.flags or self._stage.sizes or self._stage.asked)
        self._logprobs: list[TokenLogprob] = []

    def text(self, text: str) -> str:
        """Return what may be written now of a piece of the text, as `feed` does of events."""
        if self._is_simple and self._open == "text":  # most pieces of most streams
            return "" if self.blocked else self._gates["text"].feed(text)
        return "".join(event.text for event in self.feed((TextDelta(text),)) if isinstance(event, TextDelta))

    def feed(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Return the events that may be written now; log probabilities are kept until the end."""
        self._logprobs += logprobs
        passed: list[Event] = []
        for event in events:
            name = _name(event)
            if name != self._open:
                passed += self._flushed()
                self._open = name
            if self.blocked:
                break
            if isinstance(event, ToolCallStart):
                passed.append(event)
            else:
                passed += self._written(name, event[-1])
        if self._holds:
            self._held += passed
            return []
        return passed

    async def end(self) -> tuple[list[Event], Sequence[TokenLogprob]]:
        """Return the last events, and the log probabilities of the whole choice, if nothing of it was changed."""
        passed = [*self._held, *self._flushed()]
        before = {name: "".join(text) for name, text in self.texts.items()}
        await self.judge()
        if self.blocked and self._holds:
            passed, self.changed = [], True
        left = {name: "".join(text) for name, text in self.texts.items()}
        if left != before:  # each changed text comes whole, where it began
            passed = [
                event if isinstance(event, ToolCallStart) else _event(name, left.pop(name))
                for event in passed
                if (name := _name(event)) in left or isinstance(event, ToolCallStart)
            ]
        return passed, () if self.changed else self._shown(self._logprobs)

    def _flushed(self) -> list[Event]:
        return [] if self._open is None or self.blocked else self._written(self._open, "", final=True)

    def _written(self, name: _Name, text: str, final: bool = False) -> list[Event]:
        in_json = isinstance(name, int) or (self._in_json and name == "text")
        text = self.pass_on(name, text, final, in_json)
        return [_event(name, text)] if text else []

    def _shown(self, logprobs: Sequence[TokenLogprob]) -> Sequence[TokenLogprob]:
        """Return log probabilities without the likeliest tokens, if one of these is what rules cut."""
        others = "\0".join(token.text for each in logprobs for token in each.likeliest)
        with suppress(TooMuchError):
            if self._stage.rules is None or whole_text(others, self._stage.rules, lambda rule: None) == others:
                return logprobs
        return [each._replace(likeliest=()) for each in logprobs]


def _name(event: Event) -> _Name:
    if isinstance(event, TextDelta):
        return "text"
    return "reasoning" if isinstance(event, ReasoningDelta) else event.call


def _event(name: _Name, text: str) -> Event:
    if isinstance(name, int):
        return ToolCallArguments(name, text)
    return TextDelta(text) if name == "text" else ReasoningDelta(text)


async def checked_choice(choice: Mapping[str, Any], gate: ChoiceGate) -> dict[str, Any]:
    """Return a whole choice of an answer as checks leave it, with what was checked of it alone."""
    message = choice.get("message")
    passed = gate.feed(events_of(message if isinstance(message, Mapping) else {"content": choice.get("text")}))
    passed += (await gate.end())[0]
    left = Choice(int(choice.get("index") or 0), f"call_{secrets.token_hex(8)}")
    left.events(passed, ())
    left.finish_reason = BLOCKED if gate.blocked else str(choice.get("finish_reason") or "stop")
    kept = () if gate.changed else ("logprobs", "prompt_logprobs")
    scores = {name: choice[name] for name in kept if name in choice}
    return (left.text_choice() if message is None else left.chat_choice()) | scores
