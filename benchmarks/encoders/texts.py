"""Texts of exact lengths for the encoder benchmarks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.workloads.distributions import parse_distribution
from loadtests.workloads.exact_text import ExactTextGenerator
from loadtests.workloads.spec import TEXT_LENGTHS
from loadtests.workloads.text_generator import prompt_text

SHORTEST = 3
"""Tokens of the shortest text: a word between the two special tokens."""


@dataclass(frozen=True)
class Text:
    """A text and its tokens, special ones included."""

    text: str
    tokens: int


class TextMaker:
    """A reproducible supply of texts of common words for one tokenizer."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        tokenizer = directory / "tokenizer.json"
        self._texts = ExactTextGenerator(tokenizer.read_bytes(), str(tokenizer))
        self._random = random.Random(seed)

    def of_lengths(self, lengths: Sequence[int]) -> list[Text]:
        """Return a text for each number of tokens, at least SHORTEST."""
        return [
            Text(prompt_text(self._texts, tokens, self._random), tokens)
            for tokens in (max(SHORTEST, length) for length in lengths)
        ]

    def log_normal(self, count: int) -> list[Text]:
        """Return texts of the load tests' default lengths: median 40, 90th percentile 200, at most 512 tokens."""
        lengths = parse_distribution(TEXT_LENGTHS, "text_tokens", lambda _: ())
        return self.of_lengths([lengths.draw_integer(self._random) for _ in range(count)])

    def uniform(self, count: int, shortest: int, longest: int) -> list[Text]:
        return self.of_lengths([self._random.randint(shortest, longest) for _ in range(count)])


def tokens(texts: Sequence[Text]) -> int:
    return sum(text.tokens for text in texts)
