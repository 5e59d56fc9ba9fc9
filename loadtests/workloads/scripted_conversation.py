"""A session as a list of turns; each one is asked with all that was said before."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from loadtests.workloads.distributions import Distribution
from loadtests.workloads.interface import Message, RequestSpec

_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says in one turn, and how the answer is taken."""

    message: Message
    max_tokens: int
    think_time: float = 0.0
    cancel_after: float | None = None


@dataclass(frozen=True, slots=True)
class ScriptedConversation:
    """A `loadtests.workloads.interface.Session`: one turn is a single request, more are a conversation.

    As `chat`, a turn is asked as messages: `opening`, then turns and the answers that were sent in. Otherwise as one
    text: contents behind each other with an empty line between, each answer straight behind what it answers; so every
    prompt begins with the one before, and a prefix cache is of use.
    """

    number: int
    turns: Sequence[Turn]
    due: float | None = None
    chat: bool = False
    opening: tuple[Message, ...] = ()

    def requests(self) -> Generator[RequestSpec, str, None]:
        return self._as_messages() if self.chat else self._as_text()

    def _as_messages(self) -> Generator[RequestSpec, str, None]:
        said = list(self.opening)
        for turn in self.turns:
            said = [*said, turn.message]
            answer = yield RequestSpec(said, turn.max_tokens, turn.think_time, turn.cancel_after)
            said = [*said, {"role": "assistant", "content": answer}]

    def _as_text(self) -> Generator[RequestSpec, str, None]:
        said = "".join(message["content"] + _BETWEEN for message in self.opening)
        for turn in self.turns:
            said += turn.message["content"]
            answer = yield RequestSpec(said, turn.max_tokens, turn.think_time, turn.cancel_after)
            said += (answer or "") + _BETWEEN


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@dataclass(frozen=True, slots=True)
class ClientCancellation:
    """A share of clients who go away before their answer's end."""

    fraction: float
    after: Distribution

    def draw(self, source: random.Random) -> float | None:
        """After how many seconds this one goes; None: it stays."""
        return self.after.draw_number(source) if source.random() < self.fraction else None
