"""Quality of a real model's engines, beside transformers at fp32 on the weights of its GGUF file."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from build_engines.gguf.unpack import unpack
from build_engines.manifest import Precision
from tests.fixtures.engines import ROOT, EngineAtPrecision

TOKENS = 2048


@pytest.fixture(scope="module")
def checkpoint(smollm2: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("smollm2")
    unpack(smollm2(), directory, "F32", lambda done, total: None)
    return directory


@pytest.fixture(scope="module")
def text(checkpoint: Path) -> list[int]:
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    ids: list[int] = tokenizer.encode((ROOT / "LICENSE").read_text())[:TOKENS]
    return ids


@pytest.fixture(scope="module")
def expected(checkpoint: Path, text: list[int]) -> float:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        return perplexity(model(torch.tensor([text])).logits[0].numpy(), text)


def perplexity(logits: Any, ids: list[int]) -> float:
    chances = torch.log_softmax(torch.tensor(logits[:-1]).double(), -1)
    return math.exp(-chances[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean().item())


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1.005), ("int8", 1.02), ("int4", 1.5)])
def test_perplexity_is_near_that_of_transformers(
    smollm2_engine: EngineAtPrecision, expected: float, text: list[int], precision: Precision, most: float
) -> None:
    model = openvino.Core().compile_model(
        smollm2_engine(precision) / "openvino_model.xml",
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0},
    )
    inputs = {
        "input_ids": np.array([text]),
        "attention_mask": np.ones((1, len(text)), np.int64),
        "position_ids": np.arange(len(text))[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    found = perplexity(model(inputs)[0][0], text)
    print(f"\nperplexity at {precision}: {found:.3f}, {found / expected - 1:+.2%} of transformers at fp32")
    assert found <= expected * most
    assert found >= expected * 0.995 or precision != "fp32"
