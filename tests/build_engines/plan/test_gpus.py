from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.plan.gpus import GPUS, find_gpu
from build_engines.plan.size import GIB
from tests.fixtures.errors import raises


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
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("H100 PCIe", "h100-pcie"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("GH200 120GB", "gh200"),
        ("h20", "h20"),
        ("a6000", "rtx-a6000"),
        ("NVIDIA A40", "a40"),
        ("A30", "a30"),
        ("l40", "l40"),
        ("L20", "l20"),
    ],
)
def test_cards_are_found_by_the_names_that_people_use(name: str, card: str) -> None:
    assert find_gpu(name).name == card


def test_every_card_is_found_by_both_of_its_names() -> None:
    for card in GPUS.values():
        assert find_gpu(card.name) is find_gpu(card.title) is card


def test_the_docs_name_every_card() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "plan.md").read_text(encoding="utf-8")
    assert {name for name in GPUS if f"`{name}`" not in page} == set()


def test_an_unknown_card_names_the_known_ones() -> None:
    with raises(BuildError, "invalid_parameter", naming=("voodoo-2", *GPUS, "--memory")):
        find_gpu("voodoo-2")


def test_memory_is_what_cuda_tells_and_a_little_more() -> None:
    # In logs of TensorRT-LLM and vLLM: 79.10 GiB on an H100, 139.81 on an H200, 44.39 on an L40S, 39.50 on an A100.
    for name, gibibytes in (("h100", 79.10), ("h200", 139.81), ("l40s", 44.39), ("a100-40gb", 39.50)):
        assert 0.4 * GIB < find_gpu(name).memory - gibibytes * GIB < 0.65 * GIB
