"""Seeds of a request's choices."""

from __future__ import annotations

from inflight_client.sampling import Sampling

from inflight.openai_api.seeds import choice_seed


def test_choices_differ_and_repeat_on_a_reproducible_server() -> None:
    sampling = Sampling(temperature=0.9)
    seeds = [choice_seed("tea", sampling, choice, True) for choice in range(4)]
    assert seeds[0] is None  # the server derives it
    assert len({*seeds}) == 4
    assert seeds == [choice_seed("tea", sampling, choice, True) for choice in range(4)]
    assert seeds[1] != choice_seed("milk", sampling, 1, True)


def test_choices_have_the_requests_seed_or_random_ones_elsewhere() -> None:
    assert [choice_seed("tea", Sampling(seed=2**64 - 1), choice, True) for choice in range(2)] == [2**64 - 1, 0]
    assert choice_seed("tea", Sampling(), 0, False) != choice_seed("tea", Sampling(), 0, False)
