"""Separates a model's reasoning from its answer while it arrives."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from inflight.openai_api.events import Event, ReasoningDelta, TextDelta
from inflight.openai_api.partial_match import WHITESPACE, partial_match


class ReasoningTags(NamedTuple):
    """What models write around their reasoning."""

    start: str
    end: str


REASONING: dict[str, ReasoningTags] = {
    # The first whose start or end a template has is the template's.
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
    "seed": ReasoningTags("<seed:think>", "</seed:think>"),
    "hunyuan": ReasoningTags("<think:opensource>", "</think:opensource>"),
    "minimax_m3": ReasoningTags("<mm:think>", "</mm:think>"),
    "cohere": ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma4": ReasoningTags("<|channel>thought", "<channel|>"),
    "apertus": ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    "apriel": ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "think": ReasoningTags("<think>", "</think>"),
}
THINK = REASONING["think"]


@lru_cache(16)
def detect_reasoning(template: str) -> ReasoningTags | None:
    """Return the tags that a chat template mentions, or None."""
    if "<think{}>" in template:  # with a suffix
        return REASONING["hunyuan"]
    return next((tags for tags in REASONING.values() if tags.start in template or tags.end in template), None)


class ReasoningParser:
    """Splits one choice at its reasoning tags. The tags, whitespace before the first and line ends around are dropped.

    The answer has reasoning if it begins with the start tag, or if the prompt already ends with it (`inside`); some
    models then repeat the tag. All text behind the first end tag is content, even if it contains a tag.
    """

    done = False

    def __init__(self, inside: bool = False, tags: ReasoningTags = THINK) -> None:
        self._tags = tags
        self._begins_inside = inside
        self._advance = self._before
        self._unread = ""
        self._held: list[str] = []
        """Whitespace that is given out if other text follows."""
        self._strip = False
        """Whether line ends are dropped."""
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        """Take the next text of the answer; a text that may be part of a tag is held back."""
        self._unread += text
        return self._read(ended=False)

    def finish(self, cut: bool = False) -> list[Event]:
        """End the answer, and give out what was held back."""
        return self._read(ended=True)

    def _read(self, ended: bool) -> list[Event]:
        self._events = []
        while self._advance(ended):
            pass
        return self._events

    def _before(self, ended: bool) -> bool:
        """Read up to the start tag; return whether the next part can be read."""
        text = self._unread.lstrip(WHITESPACE)
        self._held.append(self._unread[: len(self._unread) - len(text)])
        self._unread = text
        has_tag = text.startswith(self._tags.start)
        if not (has_tag or ended) and self._tags.start.startswith(text):
            return False
        if has_tag:
            self._unread = text[len(self._tags.start) :]
        else:
            self._unread = "".join(self._held) + text
        self._held.clear()
        self._strip = has_tag or self._begins_inside
        self._advance = self._inside if self._strip else self._behind
        return True

    def _inside(self, ended: bool) -> bool:
        tag_at = self._unread.find(self._tags.end)
        if tag_at >= 0:
            self._reason(self._unread[:tag_at])
            self._unread = self._unread[tag_at + len(self._tags.end) :]
            self._strip = True
            self._advance = self._behind
            return True
        cut = len(self._unread) - (0 if ended else partial_match(self._unread, self._tags.end))
        self._reason(self._unread[:cut])
        self._unread = self._unread[cut:]
        if ended and self._held:
            self._events.append(ReasoningDelta("".join(self._held)))
            self._held.clear()
        return False

    def _reason(self, text: str) -> None:
        """Give out reasoning up to its last line ends, and hold these."""
        text = self._stripped(text)
        kept = text.rstrip("\n")
        if kept:
            self._events.append(ReasoningDelta("".join(self._held) + kept))
            self._held.clear()
        if len(kept) < len(text):
            self._held.append(text[len(kept) :])

    def _behind(self, ended: bool) -> bool:
        if text := self._stripped(self._unread):
            self._events.append(TextDelta(text))
        self._unread = ""
        return False

    def _stripped(self, text: str) -> str:
        if self._strip:
            text = text.lstrip("\n")
            self._strip = not text
        return text
