"""Made prompts, each a new one, of lengths drawn from distributions."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass

from loadtests.ask import Ask
from loadtests.workloads.lengths import Distribution
from loadtests.workloads.words import Words


@dataclass(frozen=True)
class SingleAsk:
    """A session of one request."""

    number: int
    ask: Ask
    due: float | None = None

    def asks(self) -> Generator[Ask, str, None]:
        yield self.ask


@dataclass(frozen=True)
class Synthetic:
    """Sessions of one made prompt each, without end."""

    input_tokens: Distribution
    output_tokens: Distribution
    words: Words
    seed: int

    def session(self, number: int) -> SingleAsk:
        source = random.Random(f"{self.seed}/{number}")
        tokens = self.input_tokens.whole(source)
        most = self.output_tokens.whole(source)
        return SingleAsk(number, Ask(self.words.text(tokens, source), most))
