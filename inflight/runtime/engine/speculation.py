"""Speculation between two models: a small one guesses the next tokens, a large one verifies them all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inflight.runtime.messages import FinishReason

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
    `take` is given each round's tokens, and says whether a stop word was among them.
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
