"""Prompts with an exact number of tokens, each one new, so that no prefix is cached."""

from __future__ import annotations

import random

from tokenizers import Tokenizer

_SYLLABLES = ["ka", "lo", "mi", "ten", "ru", "sa", "vor", "ne", "bel", "di", "os", "fa", "gri", "wen", "tu", "pal"]


class Prompts:
    """A reproducible supply of prompts for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)

    def next_prompts(self, count: int, tokens: int) -> list[tuple[str, list[int]]]:
        """Return `count` texts, each with its ids, that tokenize to exactly `tokens` ids."""
        return [self._one(tokens) for _ in range(count)]

    def _one(self, tokens: int) -> tuple[str, list[int]]:
        while True:
            words = ("".join(self._random.choices(_SYLLABLES, k=self._random.randint(1, 3))) for _ in range(tokens))
            ids = self._tokenizer.encode(" ".join(words)).ids[:tokens]
            text = self._tokenizer.decode(ids)
            again = self._tokenizer.encode(text).ids
            if again == ids and len(ids) == tokens:
                return text, ids
