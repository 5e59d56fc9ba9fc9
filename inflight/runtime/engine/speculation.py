"""Speculation between two models: a small one guesses the next tokens, a large one verifies them all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inflight.runtime.messages import FinishReason, SpeculationStats


class DraftVerifier:
    """Tells where verifying the guess would end: at the first token that differs, or one token after the guess."""

    def __init__(self, draft_ids: Sequence[int]) -> None:
        self._draft_ids = draft_ids
        self._accepted = 0

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats(len(self._draft_ids), self._accepted)

    def verify(self, token_ids: Sequence[int]) -> int | None:
        """Compare the next tokens: how many of them the answer still has when it ends here, None while it goes on."""
        for count, token in enumerate(token_ids, start=1):
            if self._accepted == len(self._draft_ids) or token != self._draft_ids[self._accepted]:
                return count
            self._accepted += 1
        return None


_CONTINUES = ("", FinishReason.LENGTH.value)
"""What a model says that has verified a guess: that it made as many tokens as it could, or nothing at all."""


class VerifiedTokens(NamedTuple):
    """The tokens of the guess that were right, and one more; fewer where the answer has ended.

    `reason` is why the large model ended, "" where it does not tell.
    """

    token_ids: Sequence[int]
    log_probs: Sequence[float] = ()
    reason: str = ""


def speculate(
    draft: Callable[[Sequence[int], int], Sequence[int]],
    verify: Callable[[Sequence[int], Sequence[int]], VerifiedTokens],
    on_verified: Callable[[VerifiedTokens], bool],
    num_draft_tokens: int,
    max_tokens: int,
) -> str:
    """Make an answer in rounds, and return why it ended.

    `draft(answer, count)` guesses what follows the answer so far, `verify(answer, guess)` says what really follows.
    `on_verified` is given each round's tokens, and says whether a stop word was among them.
    """
    answer: list[int] = []
    while len(answer) < max_tokens:
        count = min(num_draft_tokens, max_tokens - len(answer) - 1)
        verified = verify(answer, draft(answer, count) if count else ())
        if on_verified(verified):
            return FinishReason.STOP_WORD.value
        answer += verified.token_ids
        if not verified.token_ids or verified.reason not in _CONTINUES:
            return verified.reason.replace(FinishReason.LENGTH.value, "") or FinishReason.STOP.value
    return FinishReason.LENGTH.value
