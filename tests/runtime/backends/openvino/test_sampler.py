"""The sampler draws from exactly the distribution that is asked for, and the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from inflight.runtime.backends.openvino.sampler import Sampler
from inflight.runtime.backends.openvino.sampling_state import SamplingState
from inflight.runtime.messages import GenerationRequest, SamplingConfig

SIZE = 300
DRAWS, ROWS = 4000, 200


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(SIZE)


def state(generated: tuple[int, ...] = (), **values: Any) -> SamplingState:
    names = ("end_ids", "bad_ids", "logit_bias", "allowed_ids", "log_probs", "top_log_probs")
    own = {name: values.pop(name) for name in names if name in values}
    request = GenerationRequest((1, 2, 3), 9, sampling=SamplingConfig(**values), **own)
    return SamplingState(request, list(generated))


def logits(spread: float = 1.0, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).normal(size=SIZE) * spread).astype(np.float32)


def distribution(row: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Any:
    """What transformers' warpers leave: temperature, then top_k, then top_p, then min_p."""
    probabilities = np.exp((row.astype(np.float64) - row.max()) / temperature)
    order = np.argsort(-probabilities, kind="stable")
    kept = probabilities[order] / probabilities.sum()
    kept[top_k or SIZE :] = 0
    kept /= kept.sum()
    kept[np.cumsum(kept) - kept >= top_p] = 0
    kept[kept < min_p * kept[0]] = 0
    found = np.zeros(SIZE)
    found[order] = kept / kept.sum()
    return found


@pytest.mark.parametrize("spread", [0.3, 3.0])
@pytest.mark.parametrize(
    "values",
    [
        {"top_p": 1.0},
        {"top_p": 1.0, "temperature": 0.5},
        {"top_p": 0.9, "temperature": 2.0},
        {"top_p": 0.3},
        {"top_k": 5},
        {"top_k": 64, "temperature": 0.7},
        {"top_k": 100, "top_p": 0.95},
        {"top_k": 40, "top_p": 0.8},
        {"top_p": 1.0, "min_p": 0.02},
        {"top_p": 0.95, "min_p": 0.3, "temperature": 1.5},
        {"top_k": 100, "min_p": 0.01},
    ],
)
def test_tokens_come_as_often_as_they_should(sampler: Sampler, spread: float, values: dict[str, Any]) -> None:
    row = logits(spread)
    expected = distribution(row, **values)
    counts = np.zeros(SIZE)
    for begin in range(0, DRAWS, ROWS):
        states = [state(**values, seed=begin + number) for number in range(ROWS)]
        for choice in sampler.sample(np.repeat(row[None], ROWS, 0), states):
            counts[choice.token] += 1
    assert counts[expected == 0].sum() == 0
    often = expected * DRAWS >= 5
    seen = np.append(counts[often], counts[~often].sum())
    due = np.append(expected[often], expected[~often].sum()) * DRAWS
    if due[-1] < 1:
        seen, due = seen[:-1], due[:-1] * seen[:-1].sum() / due[:-1].sum()
    assert len(seen) == 1 or chisquare(seen, due).pvalue > 0.001


def test_a_seed_gives_the_same_tokens_whatever_runs_beside(sampler: Sampler) -> None:
    def drawn(places: list[int]) -> list[int]:
        states = [state((0,) * place, top_p=0.95, seed=place) for place in places]
        rows = np.stack([logits(2.0, place) for place in places])
        return [choice.token for choice in sampler.sample(rows, states)]

    together = drawn(list(range(40)))
    assert together == [token for place in range(40) for token in drawn([place])]
    assert together == drawn(list(range(39, -1, -1)))[::-1]


def test_without_a_seed_answers_differ(sampler: Sampler) -> None:
    rows = np.zeros((20, SIZE), np.float32)
    assert len({choice.token for choice in sampler.sample(rows, [state(top_p=1.0) for _ in range(20)])}) > 10


@pytest.mark.parametrize("values", [{}, {"top_k": 1, "temperature": 1.0}, {"temperature": 0.0, "top_p": 0.9}])
def test_greedy_is_the_likeliest(sampler: Sampler, values: dict[str, Any]) -> None:
    (choice,) = sampler.sample(logits()[None], [state(**values)])
    assert choice == (int(logits().argmax()), None)


def test_log_probabilities_are_those_of_the_model_before_any_setting(sampler: Sampler) -> None:
    row = logits(2.0)
    values: dict[str, Any] = {"top_k": 3, "temperature": 0.2, "repetition_penalty": 1.5, "log_probs": True}
    plain, sampled = sampler.sample(np.stack([row, row]), [state(log_probs=True), state(**values)])
    (told,) = sampler.sample(row[None].copy(), [state(log_probs=True, top_log_probs=20, allowed_ids=(7,))])
    own = np.log(distribution(row))
    for choice in (plain, sampled, told):
        assert choice.log_prob == pytest.approx(own[choice.token], abs=1e-5)
    assert told.token == 7
    assert told.log_prob is not None
    assert [token for token, _ in told.log_prob.top] == np.argsort(-own)[:20].tolist()
    assert [value for _, value in told.log_prob.top] == pytest.approx(np.sort(own)[::-1][:20].tolist(), abs=1e-5)


def test_penalties_biases_and_bans_change_logits(sampler: Sampler) -> None:
    likeliest = [int(token) for token in np.argsort(-logits())[:4]]
    first, second, third, _ = likeliest

    def chosen(**values: Any) -> int:
        return sampler.sample(logits()[None].copy(), [state(**values)])[0].token

    assert chosen(bad_ids=((first,),)) == second
    assert chosen(allowed_ids=(third, second)) == second
    assert chosen(allowed_ids=(third, second), bad_ids=((second,), (third,))) == -1
    assert chosen(allowed_ids=(first, third), end_ids=(first,), min_tokens=5) == third
    assert chosen(bad_ids=((7, first),)) == first
    assert chosen(bad_ids=((7, first),), generated=(7,)) == second
    assert chosen(logit_bias=((third, 50.0),)) == third
    assert chosen(min_tokens=2, end_ids=(first, second), generated=(1,)) == third
    assert chosen(min_tokens=1, end_ids=(first,), generated=(1,)) == first
    assert chosen(presence_penalty=2.0, generated=(first,)) == second
    assert chosen(frequency_penalty=1.0, generated=(first, first)) == second
    assert chosen(repetition_penalty=3.0, generated=(first,)) == second
