"""A guess of an answer ends it where verifying the guess would."""

from __future__ import annotations

import pytest

from inflight.runtime.engine.speculation import DraftVerifier
from inflight.runtime.messages import SpeculationStats


@pytest.mark.parametrize(
    ("steps", "kept", "accepted"),
    [
        ([[5], [6], [7], [8]], [None, None, None, 1], 3),
        ([[5], [9]], [None, 1], 1),
        ([[9]], [1], 0),
        ([[5, 6, 7, 8, 1]], [4], 3),
        ([[5, 9, 7]], [2], 1),
        ([[5, 6], []], [None, None], 2),
    ],
)
def test_it_ends_with_the_first_token_that_differs_or_one_after_the_guess(
    steps: list[list[int]], kept: list[int | None], accepted: int
) -> None:
    draft = DraftVerifier((5, 6, 7))
    assert [draft.verify(step) for step in steps] == kept
    assert draft.stats == SpeculationStats(drafted=3, accepted=accepted)
