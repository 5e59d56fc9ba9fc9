"""Takes texts through the checks of one place: those of a request, or those of a choice of an answer as they come."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from inflight.gateway.checks.judges import FAILURES, Judges
from inflight.gateway.checks.specs import Place, Stage
from inflight.gateway.checks.text_gate import Rule, TextGate, TooMuchError, whole_text
from inflight.openai_api.events import Event, TextDelta, ToolCallArguments, ToolCallStart, events_of
from inflight.openai_api.response import Choice, logprobs_of
from inflight.openai_api.token_text import TokenLogprob

BLOCKED = "content_filter"
"""The finish reason of a choice whose rest was blocked, and the code of a refused request."""
_TEXT = (TextDelta,)
T = TypeVar("T")
_PIECE_CHARACTERS, _LONG_CHARACTERS = 512, 16_384
_LONG_TEXTS = ThreadPoolExecutor(1, "long-checks")
"""Longer texts wait for each other, and no shorter one for them."""
logger = logging.getLogger("inflight.gateway")


async def run_in_thread(characters: int, work: Callable[..., T], *args: Any) -> T:
    """Call `work`, in a thread unless its text has few characters, so that other requests need not wait for it."""
    if characters <= _PIECE_CHARACTERS:
        return work(*args)
    executor = _LONG_TEXTS if characters > _LONG_CHARACTERS else None
    return await asyncio.get_running_loop().run_in_executor(executor, partial(work, *args))


class Gate:
    """`changed` once anything was cut; `blocked` is the check that has blocked the rest, `failed` if by no verdict."""

    def __init__(
        self, stage: Stage, judges: Judges, place: Place, model: str, note: Callable[[Place, str, str], None]
    ) -> None:
        """`note` is called with the place, a check and what it did."""
        self._stage, self._judges, self._place, self._model, self._note = stage, judges, place, model, note
        self._gates: dict[Hashable, TextGate] = {}
        self._passed: defaultdict[Hashable, list[str]] = defaultdict(list)
        self._size = 0
        self.changed = self.failed = False
        self.blocked = ""

    @property
    def texts(self) -> list[str]:
        """What has passed of each text."""
        return list(map("".join, self._passed.values()))

    def pass_on(self, key: Hashable, text: str, final: bool = False, in_json: bool = False) -> str:
        """Return what may be passed on after the next piece of a text; a `final` one with text is all of it."""
        rules = self._stage.rules
        if rules is not None and final and text:
            text = whole_text(text, rules, self._found, in_json)
        elif rules is not None:
            if key not in self._gates:
                self._gates[key] = TextGate(rules, self._found, in_json)
            text = self._gates[key].feed(text, final)
        for check in self._stage.sizes:
            if 0 <= (left := check.max_characters - self._size) < len(text):
                self._did(check.name, check.action)
                text = text[:left] if check.action == "block" else text
        self._size += len(text)
        self._passed[key].append(text)
        return text

    async def judge(self) -> None:
        """Take the whole texts through the checks that flag them, or judge them. A hook may change `texts`."""
        if self._stage.flags is not None:
            for text in self.texts:
                with suppress(TooMuchError):
                    await run_in_thread(len(text), whole_text, text, self._stage.flags, self._found)
        for check in self._stage.asked:
            if self.blocked or not (sent := self.texts):
                return
            try:
                flagged, left = await self._judges.verdict(check, self._place, self._model, sent)
            except FAILURES as error:
                logger.warning("the check %s gave no verdict: %s", check.name, str(error) or type(error).__name__)
                self._note(self._place, check.name, "failed")
                if check.on_error == "closed" and check.action != "flag":
                    self.blocked, self.failed = check.name, True
                continue
            if flagged:
                self._did(check.name, check.action)
            self.changed = self.changed or left != sent
            self._passed.update(zip(self._passed, ([text] for text in left), strict=True))

    def _found(self, rule: Rule) -> None:
        self._did(rule.check, rule.action)

    def _did(self, check: str, action: str) -> None:
        self._note(self._place, check, action)
        self.changed = self.changed or action != "flag"
        if action == "block":
            self.blocked = check


class ChoiceGate(Gate):
    """A choice: its text, its reasoning, and the arguments of each of its calls, each for itself."""

    def __init__(self, *of_gate: Any, in_json: bool = False) -> None:
        """`in_json`: the text is JSON, as the arguments are."""
        super().__init__(*of_gate)
        self._in_json = in_json
        self._open: tuple[Any, ...] | None = None
        self._held: list[Event] = []
        self._holds = any(each.action != "flag" for each in self._stage.asked)
        """Whether all waits for a verdict."""
        self._is_simple = not (self._stage.flags or self._stage.sizes or self._stage.asked)
        self._logprobs: list[TokenLogprob] = []

    def text(self, text: str) -> str:
        """Return what may be written now of a piece of the text, as `feed` does of events."""
        if self._is_simple and self._open == _TEXT and len(text) <= _PIECE_CHARACTERS:  # most pieces of most streams
            return "" if self.blocked else self._gates[_TEXT].feed(text)
        return "".join(event[-1] for event in self.feed((TextDelta(text),)) if isinstance(event, TextDelta))

    async def feed_in_thread(self, events: Sequence[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Do what `feed` does, for events that may have much text."""
        return await run_in_thread(sum(len(event[-1]) for event in events), self.feed, events, logprobs)

    def feed(self, events: Sequence[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Return the events that may be written now; log probabilities are kept until the end."""
        self._logprobs += logprobs
        passed: list[Event] = []
        for event in events:
            if (key := _key(event)) != self._open:
                passed += self._flushed()
                self._open = key
            if self.blocked:
                break
            passed += [event] if isinstance(event, ToolCallStart) else self._written(key, event[-1])
        if self._holds:
            self._held += passed
            return []
        return passed

    async def end(self) -> tuple[list[Event], Sequence[TokenLogprob]]:
        """Return the last events, and the log probabilities of the whole choice, if nothing of it was changed."""
        passed = [*self._held, *self._flushed()]
        await self.judge()
        if self._holds:  # nothing was sent, so each text comes whole, where it began
            left = dict(zip(self._passed, self.texts, strict=True))
            passed = [
                event if isinstance(event, ToolCallStart) else _event(key, left.pop(key))
                for event in passed
                if (key := _key(event)) in left or isinstance(event, ToolCallStart)
            ]
            if self.blocked:
                passed, self.changed = [], True
        return passed, () if self.changed else await self.shown(self._logprobs)

    def _flushed(self) -> list[Event]:
        if self._open is None or self._open[0] is ToolCallStart or self.blocked:
            return []
        return self._written(self._open, "", final=True)

    def _written(self, key: tuple[Any, ...], text: str, final: bool = False) -> list[Event]:
        in_json = key[0] is ToolCallArguments or (self._in_json and key == _TEXT)
        try:
            text = self.pass_on(key, text, final, in_json)
        except TooMuchError as error:
            self._note(self._place, error.check, "failed")
            self.blocked, self.changed, text = error.check, True, ""
        return [_event(key, text)] if text else []

    async def shown(self, logprobs: list[TokenLogprob]) -> list[TokenLogprob]:
        """Return log probabilities without the likeliest tokens, if one of these is what rules cut."""
        if await self._leaves(token.text for each in logprobs for token in each.likeliest):
            return logprobs
        return [each._replace(likeliest=()) for each in logprobs]

    async def shows_prompt(self, answer: Mapping[str, Any]) -> bool:
        """Return whether the log probabilities of a prompt, as vLLM writes them, may be shown."""
        places = answer.get("prompt_logprobs") or ()
        tokens = (str(each.get("decoded_token")) for place in places for each in (place or {}).values())
        return not self.changed and await self._leaves(tokens)

    async def _leaves(self, tokens: Iterable[str]) -> bool:
        """Return whether rules leave tokens as they are, each for itself."""
        joined, rules = "\ue000".join(tokens), self._stage.rules
        with suppress(TooMuchError):
            return rules is None or joined == await run_in_thread(
                len(joined), whole_text, joined, rules, lambda rule: None
            )
        return False


def _key(event: Event) -> tuple[Any, ...]:
    """Return of what text an event has a piece: all of it but the piece."""
    return (type(event), *event[:-1])


def _event(key: tuple[Any, ...], text: str) -> Event:
    event: Event = key[0](*key[1:], text)
    return event


async def checked_choice(choice: Mapping[str, Any], gate: ChoiceGate | None) -> Mapping[str, Any]:
    """Return a whole choice of an answer as its gate leaves it, with what was checked of it alone."""
    if gate is None:
        return choice
    message, scores = choice.get("message"), logprobs_of(choice)
    events = events_of(message if isinstance(message, Mapping) else {"content": choice.get("text")})
    passed = await gate.feed_in_thread(events, scores)
    last, shown = await gate.end()
    left = Choice(int(choice.get("index") or 0), f"call_{secrets.token_hex(8)}")
    left.events([*passed, *last], ())
    left.finish_reason = BLOCKED if gate.blocked else str(choice.get("finish_reason") or "stop")
    kept = {"logprobs", "prompt_logprobs"} if not gate.changed else set()
    if kept and shown != scores:
        left.logprobs, kept = list(shown), {"prompt_logprobs"}
    if not await gate.shows_prompt(choice):
        kept = kept - {"prompt_logprobs"}
    values = {name: choice[name] for name in kept & choice.keys()}
    return (left.text_choice() if message is None else left.chat_choice()) | values
