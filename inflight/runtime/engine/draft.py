"""Somebody's guess of an answer, compared with the answer as it comes."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.runtime.messages import SpeculationStats


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
