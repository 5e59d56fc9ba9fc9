from __future__ import annotations

import pytest

from build_engines.errors import BuildError
from build_engines.plan.cards import CARDS, find_card
from build_engines.plan.size import GIB


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("h200", "h200"),
        ("H200", "h200"),
        ("NVIDIA H200", "h200"),
        ("a100", "a100-80gb"),
        ("A100_40GB", "a100-40gb"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ],
)
def test_cards_are_found_by_the_names_that_people_use(name: str, card: str) -> None:
    assert find_card(name).name == card


def test_an_unknown_card_names_the_known_ones() -> None:
    with pytest.raises(BuildError) as caught:
        find_card("voodoo-2")
    assert caught.value.code == "invalid_parameter"
    assert all(name in str(caught.value) for name in CARDS)
    assert "--memory" in str(caught.value)


def test_memory_is_what_cuda_tells_and_a_little_more() -> None:
    # In logs of TensorRT-LLM and vLLM: 79.10 GiB on an H100, 139.81 on an H200, 44.39 on an L40S, 39.50 on an A100.
    for name, told in (("h100", 79.10), ("h200", 139.81), ("l40s", 44.39), ("a100-40gb", 39.50)):
        assert 0.4 * GIB < find_card(name).memory - told * GIB < 0.65 * GIB
