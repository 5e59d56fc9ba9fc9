"""Synthetic prompts and conversations, each different, with random lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from loadtests.workloads.distributions import Distribution
from loadtests.workloads.scripted_conversation import ClientCancellation, ScriptedConversation, Turn, user
from loadtests.workloads.text_generator import TextGenerator, prompt_text

_PREFIXES_KEPT = 256


class PrefixPool:
    """Shared prefixes of prompts: `count` different ones, each of `tokens` tokens, for a `fraction` of sessions."""

    def __init__(self, tokens: int, count: int, fraction: float, texts: TextGenerator, seed: int) -> None:
        self.tokens = tokens
        self._count = count
        self._fraction = fraction
        self._texts = texts
        self._seed = seed
        self._text = lru_cache(_PREFIXES_KEPT)(self._make)

    def draw(self, source: random.Random) -> str:
        """Return one of the prefixes, or an empty one for a session without."""
        if self.tokens and source.random() < self._fraction:
            return self._text(source.randrange(self._count))
        return ""

    def _make(self, number: int) -> str:
        return self._texts.piece(self.tokens, random.Random(f"{self._seed}/prefix/{number}"), first=True)


@dataclass(frozen=True)
class SyntheticWorkload:
    """Sessions of synthetic prompts, without end.

    `longest` limits a session's tokens as requested: answers count as `max_tokens`.
    """

    input_tokens: Distribution
    output_tokens: Distribution
    turn_tokens: Distribution
    turns: Distribution
    think_time: Distribution
    cancellation: ClientCancellation
    prefixes: PrefixPool
    texts: TextGenerator
    chat: bool
    max_input_tokens: int | None
    seed: int

    def session(self, number: int) -> ScriptedConversation:
        source = random.Random(f"{self.seed}/{number}")
        prefix = self.prefixes.draw(source)
        held = self.prefixes.tokens if prefix else 0
        turns: list[Turn] = []
        for turn in range(self.turns.draw_integer(source)):
            tokens = (self.turn_tokens if turn else self.input_tokens).draw_integer(source)
            if self.max_input_tokens is not None:
                if turn and held + tokens > self.max_input_tokens:
                    break
                tokens = min(tokens, self.max_input_tokens - held)
            if turn:
                text = self.texts.piece(tokens, source, first=True)
            else:
                text = prompt_text(self.texts, tokens, source, prefix, held)
            most = self.output_tokens.draw_integer(source)
            think = self.think_time.draw_number(source) if turn else 0.0
            turns.append(Turn(user(text), most, think, self.cancellation.draw(source)))
            held += tokens + most
        return ScriptedConversation(number, turns, chat=self.chat)
