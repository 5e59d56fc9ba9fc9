"""The plan's figures against published ones: every one within 5%."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.plan.formats import GPU_KV, GPU_WEIGHTS
from build_engines.plan.gpu_memory import Split, sequence_bytes, token_bytes
from build_engines.plan.gpus import GPUS
from build_engines.plan.size import GIB
from tests.build_engines.plan.published import CACHES, COUNTS, WEIGHTS, Cache, Count, Weights
from tests.build_engines.plan.published_models import parameters_of, shape_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("figure", COUNTS, ids=lambda figure: f"{figure.model}-{figure.part}")
def test_parameters_are_as_many_as_published(figure: Count) -> None:
    parameters = parameters_of(figure.model)
    planned = parameters.total
    if figure.part == "layers":
        planned -= parameters.embedding + parameters.output
    assert planned == pytest.approx(figure.parameters, rel=0.05), figure.source


@pytest.mark.parametrize("figure", WEIGHTS, ids=lambda figure: f"{figure.model}-{figure.precision}")
def test_weights_take_what_is_published(figure: Weights) -> None:
    planned = GPU_WEIGHTS[figure.precision].checkpoint_bytes(parameters_of(figure.model))
    assert planned == pytest.approx(figure.size, rel=0.05), figure.source


@pytest.mark.parametrize("figure", CACHES, ids=lambda figure: f"{figure.model}-{figure.precision}-{figure.tokens:.0f}")
def test_the_kv_cache_takes_what_is_published(figure: Cache) -> None:
    planned = token_bytes(shape_of(figure.model), GPU_KV[figure.precision], figure.split) * figure.tokens
    assert planned == pytest.approx(figure.size, rel=0.05), figure.source


def test_a_window_saves_what_the_paper_of_mistral_says() -> None:
    # Jiang et al., Mistral 7B (arXiv:2310.06825), section 2: "On a sequence length of 32k tokens, this reduces the
    # cache memory usage by 8x".
    shape, kv = shape_of("mistral-7b-v0.1"), GPU_KV["bf16"]
    whole = token_bytes(shape, kv, Split()) * 32768
    assert whole / sequence_bytes(shape, kv, Split(), 32768) == pytest.approx(8, rel=0.05)


def test_an_h200_has_left_beside_the_weights_what_upstream_prints() -> None:
    # perf-benchmarking.md, Llama 3.1 8B in FP8: "Estimated total available memory for KV cache: 132.37 GB".
    left = GPUS["h200"].memory - GPU_WEIGHTS["fp8"].checkpoint_bytes(parameters_of("llama-3.1-8b"))
    assert left == pytest.approx(132.37 * GIB, rel=0.05)


def test_the_docs_name_every_model_that_was_compared() -> None:
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8").lower()
    compared = {one.model for one in COUNTS} | {one.model for one in WEIGHTS} | {one.model for one in CACHES}
    assert len(compared) >= 6
    assert {model for model in compared if f"| {model} |" not in text} == set()
