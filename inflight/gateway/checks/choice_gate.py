"""Takes the events of one choice through the checks after the model."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from inflight.gateway.checks.specs import Stage, name_of
from inflight.gateway.checks.text_gate import Rule, TextGate
from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart, events_of
from inflight.openai_api.response import Choice
from inflight.openai_api.token_text import TokenLogprob

BLOCKED = "content_filter"
"""The finish reason of a choice whose rest was blocked."""
Note = Callable[[str, str], None]
"""Is called with the name of a check and what it did."""
Ask = Callable[[Sequence[str], Note], Awaitable[Sequence[str] | None]]
"""Returns texts as the checks leave them that judge whole ones; None if one blocks them."""
_Channel = str | int
"""The text, the reasoning, or the arguments of a call by its number: what an application reads as one text."""


def _channel(event: Event) -> _Channel:
    match event:
        case TextDelta():
            return "text"
        case ReasoningDelta():
            return "reasoning"
        case _:
            return event.call


class ChoiceGate:
    """Passes on what no check blocks. `changed` once anything of the choice was cut, `blocked` once its rest was."""

    def __init__(self, stage: Stage, ask: Ask, note: Note, in_json: bool = False) -> None:
        """`in_json`: the text is JSON, as the arguments of calls are."""
        self._stage, self._ask, self._note, self._in_json = stage, ask, note, in_json
        self._gates: dict[_Channel, TextGate] = {}
        self._flags: dict[_Channel, TextGate] = {}
        self._open: _Channel | None = None
        self._texts: dict[_Channel, list[str]] = {}
        """The texts that are judged at the end."""
        self._held: list[Event] = []
        """What waits for that."""
        self._holds = any(each.action != "flag" for each in stage.asked)
        self._size = 0
        self._logprobs: list[TokenLogprob] = []
        self.changed = self.blocked = False
        self._is_simple = not (stage.flags or stage.sizes or stage.asked)

    def text(self, text: str) -> str:
        """Return what may be written now of text alone, as `feed` does of events."""
        if self.blocked:
            return ""
        if self._is_simple and self._open == "text":
            gate = self._gates["text"]
            passed = gate.feed(text)
            self.blocked = gate.cut is not None
            return passed
        return "".join(event.text for event in self.feed((TextDelta(text),)) if isinstance(event, TextDelta))

    def feed(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Return the events that may be written now; log probabilities are kept until the end."""
        self._logprobs += logprobs
        passed: list[Event] = []
        for event in events:
            channel = _channel(event)
            if channel != self._open:
                passed += self._flush()
                self._open = channel
            if self.blocked:
                break
            match event:
                case ToolCallStart():
                    passed.append(event)
                case TextDelta(text) | ReasoningDelta(text) | ToolCallArguments(_, text):
                    passed += self._pass(channel, text)
        if self._holds:
            self._held += passed
            return []
        return passed

    async def end(self) -> tuple[list[Event], Sequence[TokenLogprob]]:
        """Return the last events, and the log probabilities of the whole choice, if nothing of it was changed."""
        passed = [*self._held, *self._flush()]
        if self._stage.asked and not self.blocked:
            names = list(self._texts)
            texts = await self._ask(["".join(self._texts[name]) for name in names], self._note)
            if texts is None:
                self.blocked, passed = True, []
            else:
                passed = self._replaced(passed, dict(zip(names, texts, strict=True)))
        elif self.blocked and self._holds:
            passed = []  # it has no verdict
        self.changed = self.changed or self.blocked
        return passed, () if self.changed else self._logprobs

    def _flush(self) -> list[Event]:
        return [] if self._open is None or self.blocked else self._pass(self._open, "", final=True)

    def _pass(self, channel: _Channel, text: str, final: bool = False) -> list[Event]:
        if self._stage.flags is not None:
            self._gate(self._flags, channel).feed(text, final)
        if self._stage.rules is not None:
            gate = self._gate(self._gates, channel)
            text = gate.feed(text, final)
            self.blocked = gate.cut is not None
        for check in self._stage.sizes:
            left = check.max_characters - self._size
            if 0 <= left < len(text):
                self._note(name_of(check), check.action)
                if check.action == "block":
                    text, self.blocked = text[:left], True
        self._size += len(text)
        if not text:
            return []
        if self._stage.asked:
            self._texts.setdefault(channel, []).append(text)
        return [_event(channel, text)]

    def _gate(self, gates: dict[_Channel, TextGate], channel: _Channel) -> TextGate:
        if channel not in gates:
            rules = self._stage.rules if gates is self._gates else self._stage.flags
            assert rules is not None
            in_json = isinstance(channel, int) or (self._in_json and channel == "text")
            gates[channel] = TextGate(rules, self._found, in_json)
        return gates[channel]

    def _found(self, rule: Rule) -> None:
        self.changed = self.changed or rule.action != "flag"
        self._note(rule.check, rule.action)

    def _replaced(self, events: Sequence[Event], texts: Mapping[_Channel, str]) -> list[Event]:
        """Return events with texts that a hook has changed, each as one event."""
        changed = {name: text for name, text in texts.items() if text != "".join(self._texts[name])}
        if not self._holds or not changed:
            return list(events)
        self.changed = True
        replaced: list[Event] = []
        for event in events:
            channel = _channel(event)
            if isinstance(event, ToolCallStart) or channel not in texts or channel not in changed:
                replaced.append(event)
            elif changed[channel]:
                replaced.append(_event(channel, changed[channel]))
                changed[channel] = ""
        return replaced


def _event(channel: _Channel, text: str) -> Event:
    if isinstance(channel, int):
        return ToolCallArguments(channel, text)
    return TextDelta(text) if channel == "text" else ReasoningDelta(text)


async def checked_choice(choice: Mapping[str, Any], gate: ChoiceGate) -> Mapping[str, Any]:
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
