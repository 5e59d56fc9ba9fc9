"""Speculative decoding with two models: a draft model proposes tokens, a target model verifies them in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inflight.runtime.messages import FinishReason, SpeculationStats


class DraftVerifier:
    """Finds where the verification of a draft ends: at the first token that differs, or one token after the draft."""

    def __init__(self, draft_ids: Sequence[int]) -> None:
        self._draft_ids = draft_ids
        self._accepted = 0

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats(len(self._draft_ids), self._accepted)

    def verify(self, token_ids: Sequence[int]) -> int | None:
        """Compare the next tokens; return how many of them the answer keeps if it ends here, None if it continues."""
        for count, token in enumerate(token_ids, start=1):
            if self._accepted == len(self._draft_ids) or token != self._draft_ids[self._accepted]:
                return count
            self._accepted += 1
        return None


_CONTINUES = ("", FinishReason.LENGTH.value)
"""Finish reasons of a verified draft after which the answer continues: length, or no reason."""


class VerifiedTokens(NamedTuple):
    """The accepted tokens of a draft, and one more; fewer if the answer has ended.

    `reason` is the target model's finish reason, "" if it has none.
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
    """Generate an answer in rounds and return its finish reason.

    `draft(answer, count)` proposes tokens after the answer so far, `verify(answer, guess)` returns the verified ones.
    `on_verified` gets each round's tokens and returns whether they include a stop word.
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
