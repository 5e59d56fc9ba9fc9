"""In reproducible mode, answers and their log probabilities are the same to the last bit, whatever runs beside them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest, SamplingConfig
from tests.runtime.backends.drive_runner import CollectedOutput, run

SAMPLINGS = (
    SamplingConfig(),
    SamplingConfig(seed=1, temperature=0.8, top_p=0.9),
    SamplingConfig(seed=2, top_k=30, repetition_penalty=1.2),
    SamplingConfig(beam_width=3),
)


def requests(count: int) -> list[GenerationRequest]:
    """Prompts that share and extend each other, of lengths around whole blocks; some are scored."""
    source = random.Random(3)
    base = [source.randrange(5, 1000) for _ in range(140)]
    return [
        GenerationRequest(
            tuple(base[: (1, 33, 64, 65, 97, 130)[place % 6]] + [5 + place] * (place % 3)),
            6,
            sampling=(sampling := SAMPLINGS[place % 4]),
            log_probs=True,
            prompt_log_probs=place % 5 == 0 and sampling.beam_width == 1,
        )
        for place in range(count)
    ]


def bits(answer: CollectedOutput) -> object:
    return answer.token_ids, answer.log_probs, answer.prompt_log_probs[1:], answer.beams


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_answers_are_equal_to_the_last_bit(tiny_engine: Callable[[str], Path], architecture: str) -> None:
    def runner(**options: Any) -> OpenVinoModelRunner:
        engine = str(tiny_engine(architecture))
        return OpenVinoModelRunner(EngineOptions("openvino", engine, 8192, reproducible=True, **options))

    asked = requests(12)
    one_by_one = runner(kv_cache_reuse=False, max_num_tokens=512)
    alone = [bits(run(one_by_one, request)[0]) for request in asked]
    together = runner(max_num_tokens=48)
    for _ in range(2):  # the second time, blocks of prompts are known
        assert [bits(answer) for answer in run(together, *asked)] == alone


def test_blocks_of_answers_are_not_reused(tiny_engine: Callable[[str], Path]) -> None:
    runner = OpenVinoModelRunner(EngineOptions("openvino", str(tiny_engine("llama")), 4096, reproducible=True))
    first = GenerationRequest(tuple(range(5, 45)), 60)
    longer = (*first.prompt_ids, *run(runner, first)[0].token_ids)
    runner.add(0, GenerationRequest(longer, 1))
    (output,) = runner.step()
    assert output.cached_tokens == 32
