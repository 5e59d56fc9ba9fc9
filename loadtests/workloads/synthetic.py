"""Made prompts and conversations, each a new one, of lengths drawn from distributions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from loadtests.workloads.dialogue import Dialogue, Leaving, Turn, user
from loadtests.workloads.lengths import Distribution
from loadtests.workloads.words import Texts, prompt_text

_PREFIXES_KEPT = 256


class Prefixes:
    """Beginnings that prompts share: `count` different ones, each of `tokens` tokens, for a `share` of sessions."""

    def __init__(self, tokens: int, count: int, share: float, texts: Texts, seed: int) -> None:
        self.tokens = tokens
        self._count = count
        self._share = share
        self._texts = texts
        self._seed = seed
        self._text = lru_cache(_PREFIXES_KEPT)(self._made)

    def draw(self, source: random.Random) -> str:
        """One of them; nothing for a session that has none."""
        if self.tokens and source.random() < self._share:
            return self._text(source.randrange(self._count))
        return ""

    def _made(self, number: int) -> str:
        return self._texts.piece(self.tokens, random.Random(f"{self._seed}/prefix/{number}"), first=True)


@dataclass(frozen=True)
class Synthetic:
    """Sessions of made prompts, without end.

    `longest` bounds a session's tokens, counted as they are asked for: answers as `max_tokens`.
    """

    input_tokens: Distribution
    output_tokens: Distribution
    turn_tokens: Distribution
    turns: Distribution
    think: Distribution
    leaving: Leaving
    prefixes: Prefixes
    texts: Texts
    chat: bool
    longest: int | None
    seed: int

    def session(self, number: int) -> Dialogue:
        source = random.Random(f"{self.seed}/{number}")
        prefix = self.prefixes.draw(source)
        held = self.prefixes.tokens if prefix else 0
        turns: list[Turn] = []
        for turn in range(self.turns.whole(source)):
            tokens = (self.turn_tokens if turn else self.input_tokens).whole(source)
            if self.longest is not None:
                if turn and held + tokens > self.longest:
                    break
                tokens = min(tokens, self.longest - held)
            if turn:
                text = self.texts.piece(tokens, source, first=True)
            else:
                text = prompt_text(self.texts, tokens, source, prefix, held)
            most = self.output_tokens.whole(source)
            think = self.think.number(source) if turn else 0.0
            turns.append(Turn(user(text), most, think, self.leaving.when(source)))
            held += tokens + most
        return Dialogue(number, turns, chat=self.chat)
