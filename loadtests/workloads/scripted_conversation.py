"""A session as a list of turns; each request contains all earlier turns."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from loadtests.workloads.distributions import Distribution
from loadtests.workloads.interface import Message, RequestSpec

_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """The user's message in one turn, and how the answer is received."""

    message: Message
    max_tokens: int
    think_time: float = 0.0
    cancel_after: float | None = None


@dataclass(frozen=True, slots=True)
class ScriptedConversation:
    """A `loadtests.workloads.interface.Session`: one turn is a single request, several are a conversation.

    With `chat`, a turn is sent as messages: `opening`, then the turns and the answers that were sent in. Otherwise it
    is one text: the contents separated by empty lines, each answer directly after the text that it continues; so every
    prompt begins with the previous one, and a prefix cache is effective.
    """

    number: int
    turns: Sequence[Turn]
    due: float | None = None
    chat: bool = False
    opening: tuple[Message, ...] = ()

    def requests(self) -> Generator[RequestSpec, str, None]:
        return self._as_messages() if self.chat else self._as_text()

    def _as_messages(self) -> Generator[RequestSpec, str, None]:
        messages = list(self.opening)
        for turn in self.turns:
            messages = [*messages, turn.message]
            answer = yield RequestSpec(messages, turn.max_tokens, turn.think_time, turn.cancel_after)
            messages = [*messages, {"role": "assistant", "content": answer}]

    def _as_text(self) -> Generator[RequestSpec, str, None]:
        text = "".join(message["content"] + _BETWEEN for message in self.opening)
        for turn in self.turns:
            text += turn.message["content"]
            answer = yield RequestSpec(text, turn.max_tokens, turn.think_time, turn.cancel_after)
            text += (answer or "") + _BETWEEN


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@dataclass(frozen=True, slots=True)
class ClientCancellation:
    """A fraction of clients that disconnect before the end of their answer."""

    fraction: float
    after: Distribution

    def draw(self, source: random.Random) -> float | None:
        """Return the seconds after which this client disconnects; None: it does not."""
        return self.after.draw_number(source) if source.random() < self.fraction else None
