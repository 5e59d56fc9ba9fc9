"""Prompts and conversations from a file of JSON Lines."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadtests.workloads.dialogue import Dialogue, Leaving, Turn
from loadtests.workloads.lengths import Distribution
from loadtests.workloads.lines import JsonLines
from loadtests.workloads.prompt_rows import PromptRow, RowError, plain, prompt_row

# Keeps the order apart from other draws with the same seed.
_STREAM = 0x6F72646572


@dataclass(frozen=True)
class Manner:
    """How a file's prompts are asked: what its rows don't say."""

    output_tokens: Distribution
    think: Distribution
    leaving: Leaving
    form: Literal["auto", "text", "messages"]
    most_output: int | None
    shuffled: bool
    repeat: bool


class PromptFile:
    """A session for each line, in order or shuffled, once or round and round.

    Every line is checked at once, and read again when its turn comes: a million of them would take gigabytes as
    objects. Raises LoadError for the first line that can't be used.
    """

    def __init__(self, data: bytes, name: str, manner: Manner, seed: int) -> None:
        self._lines = JsonLines(data, name)
        self._manner = manner
        self._seed = seed
        self._order = lru_cache(2)(self._shuffled)
        for row in range(len(self._lines)):
            self._row(row)

    def session(self, number: int) -> Dialogue | None:
        turn, row = divmod(number, len(self._lines))
        if turn and not self._manner.repeat:
            return None
        if self._manner.shuffled:
            row = int(self._order(turn)[row])
        return self._dialogue(number, self._row(row))

    def _dialogue(self, number: int, found: PromptRow) -> Dialogue:
        source = random.Random(f"{self._seed}/{number}")
        manner = self._manner
        turns = []
        for at, message in enumerate(found.messages):
            most = found.max_tokens or manner.output_tokens.whole(source)
            most = min(most, manner.most_output or most)
            think = manner.think.number(source) if at else 0.0
            turns.append(Turn(message, most, think, manner.leaving.when(source)))
        chat = found.chat if manner.form == "auto" else manner.form == "messages"
        return Dialogue(number, turns, chat=chat, opening=found.opening)

    def _row(self, row: int) -> PromptRow:
        try:
            found = prompt_row(self._lines.read(row))
            if self._manner.form == "text":
                plain([*found.opening, *found.messages])
        except RowError as error:
            raise self._lines.wrong(row, str(error)) from None
        return found

    def _shuffled(self, turn: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([_STREAM, self._seed, turn]).permutation(len(self._lines))
