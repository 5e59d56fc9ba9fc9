"""Two models at work on one answer: the same tokens as the large one makes alone, in fewer rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from inflight.runtime.engine.speculation import VerifiedTokens, speculate

ANSWER = [3, 1, 4, 1, 5, 9, 2, 6]
END = "stop"


class LargeModel:
    """Knows the answer, which ends by itself behind its last token, and counts its rounds; some tell why they end."""

    def __init__(self, tells: bool) -> None:
        self.rounds = 0
        self._tells = tells

    def verify(self, answer: Sequence[int], guess: Sequence[int]) -> VerifiedTokens:
        self.rounds += 1
        rest = ANSWER[len(answer) :]
        right = 0
        while right < min(len(guess), len(rest)) and guess[right] == rest[right]:
            right += 1
        tokens = rest[: right + 1]
        ended = right == len(rest)
        return VerifiedTokens(tokens, (), (END if ended else "length") if self._tells else "")


def good_draft(answer: Sequence[int], count: int) -> Sequence[int]:
    return ANSWER[len(answer) :][:count]


def bad_draft(answer: Sequence[int], count: int) -> Sequence[int]:
    return [0] * count


def mute_draft(answer: Sequence[int], count: int) -> Sequence[int]:
    return []


def half_draft(answer: Sequence[int], count: int) -> Sequence[int]:
    return [token if token != 1 else 0 for token in good_draft(answer, count)]


Draft = Callable[[Sequence[int], int], Sequence[int]]


def made(model: LargeModel, draft: Draft, max_tokens: int, count: int = 3) -> tuple[list[int], str]:
    taken: list[int] = []

    def take(verified: VerifiedTokens) -> bool:
        taken.extend(verified.token_ids)
        return False

    reason = speculate(draft, model.verify, take, count, max_tokens)
    return taken, reason


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("draft", [good_draft, bad_draft, mute_draft, half_draft])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 8, 50])
def test_the_answer_is_the_large_models(tells: bool, draft: Draft, max_tokens: int) -> None:
    tokens, reason = made(LargeModel(tells), draft, max_tokens)
    assert tokens == ANSWER[:max_tokens]
    assert reason == ("length" if max_tokens <= len(ANSWER) else END)


def test_a_good_draft_saves_rounds() -> None:
    good, bad = LargeModel(tells=True), LargeModel(tells=True)
    made(good, good_draft, 8)
    made(bad, bad_draft, 8)
    assert (good.rounds, bad.rounds) == (2, 8)


def test_no_more_is_drafted_than_the_answer_may_still_have() -> None:
    asked: list[int] = []

    def draft(answer: Sequence[int], count: int) -> Sequence[int]:
        asked.append(len(answer) + count)
        return good_draft(answer, count)

    made(LargeModel(tells=True), draft, 6, count=4)
    assert max(asked) <= 5


def test_a_stop_word_ends_it() -> None:
    model = LargeModel(tells=True)
    assert speculate(good_draft, model.verify, lambda verified: 9 in verified.token_ids, 1, 8) == "stop_word"
    assert model.rounds == 3


@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
def test_whatever_ends_the_large_model_ends_it(reason: str) -> None:
    tokens: list[int] = []

    def take(verified: VerifiedTokens) -> bool:
        tokens.extend(verified.token_ids)
        return False

    assert speculate(good_draft, lambda *_: VerifiedTokens([3], (), reason), take, 3, 8) == reason
    assert tokens == [3]
