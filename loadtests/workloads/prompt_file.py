"""Prompts and conversations from a JSON Lines file."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from loadtests.workloads.distributions import Distribution
from loadtests.workloads.json_lines import JsonLines
from loadtests.workloads.prompt_rows import PromptRow, prompt_row, require_text_content
from loadtests.workloads.scripted_conversation import ClientCancellation, ScriptedConversation, Turn

# Separates the order from other draws with the same seed.
_STREAM = 0x6F72646572


@dataclass(frozen=True)
class PromptOptions:
    """Options for the prompts of a file: what its rows do not specify."""

    output_tokens: Distribution
    think_time: Distribution
    cancellation: ClientCancellation
    prompt_format: Literal["auto", "text", "messages"]
    max_output_tokens: int | None
    shuffled: bool
    repeat: bool


class PromptFile:
    """A session for each line, in order or shuffled, once or repeatedly.

    All lines are validated at the start and parsed again when they are used: a million of them would take gigabytes as
    objects. Lines that cannot be sent are left out. Raises LoadError if all are such, or one is not JSON.
    """

    def __init__(self, data: bytes, name: str, options: PromptOptions, seed: int) -> None:
        self.lines = JsonLines(data, name)
        self._options = options
        self._seed = seed
        self._order = lru_cache(2)(self._shuffled_row)
        self.lines.keep_valid(self._parse)

    def session(self, number: int) -> ScriptedConversation | None:
        turn, row = divmod(number, len(self.lines))
        if turn and not self._options.repeat:
            return None
        if self._options.shuffled:
            row = int(self._order(turn)[row])
        return self._conversation(number, self._parse(self.lines.read(row)))

    def _conversation(self, number: int, found: PromptRow) -> ScriptedConversation:
        source = random.Random(f"{self._seed}/{number}")
        manner = self._options
        turns = []
        for at, message in enumerate(found.messages):
            most = found.max_tokens or manner.output_tokens.draw_integer(source)
            most = min(most, manner.max_output_tokens or most)
            think = manner.think_time.draw_number(source) if at else 0.0
            turns.append(Turn(message, most, think, manner.cancellation.draw(source)))
        chat = found.chat if manner.prompt_format == "auto" else manner.prompt_format == "messages"
        return ScriptedConversation(number, turns, chat=chat, opening=found.opening)

    def _parse(self, values: dict[str, Any]) -> PromptRow:
        found = prompt_row(values)
        if self._options.prompt_format == "text":
            require_text_content([*found.opening, *found.messages])
        return found

    def _shuffled_row(self, turn: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([_STREAM, self._seed, turn]).permutation(len(self.lines))
