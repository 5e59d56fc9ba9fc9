"""The engine's own forward passes on a tiny model: the tokens are transformers', whatever runs beside."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest, RequestMetadata
from tests.runtime.backends.drive_runner import run

BLOCKS = 64


def runner(engine: Path, max_num_tokens: int = 96) -> OpenVinoModelRunner:
    return OpenVinoModelRunner(
        EngineOptions("paged", str(engine), BLOCKS * 32, max_num_sequences=64, max_num_tokens=max_num_tokens)
    )


def prompts(count: int, seed: int = 1) -> list[tuple[int, ...]]:
    """Prompts that share, extend and repeat each other."""
    rng = random.Random(seed)
    base = [rng.randrange(5, 1000) for _ in range(150)]
    return [
        tuple(base[: rng.randrange(1, 150)] + [rng.randrange(5, 1000) for _ in range(rng.choice([1, 1, 30]))])
        for _ in range(count)
    ]


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gemma2", "phi3"])
def test_tokens_are_those_of_transformers(
    tiny_engine: Callable[[str], Path], tiny_checkpoint: Callable[[str], Path], architecture: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(architecture), dtype=torch.float32).eval()
    requests = [GenerationRequest(prompt, 10) for prompt in prompts(8)]
    for request, answer in zip(requests, run(runner(tiny_engine(architecture), 48), *requests), strict=True):
        ids = torch.tensor([request.prompt_ids])
        whole = model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert answer.token_ids == whole[0, ids.shape[1] :].tolist()


def test_the_cache_may_be_filled_to_the_last_block_again_and_again(tiny_engine: Callable[[str], Path]) -> None:
    """Four requests of exactly a quarter each, whose tokens are those that the first ones got."""
    engine = runner(tiny_engine("llama"))
    whole = [GenerationRequest(tuple(range(600 + n, 664 + n)), BLOCKS * 8 - 64) for n in range(4)]
    answers = [[answer.token_ids for answer in run(engine, *whole)] for _ in range(2)]
    assert answers[0] == answers[1]


def steps_to_first_token(runner: OpenVinoModelRunner, request: GenerationRequest) -> int:
    runner.add(0, request)
    steps = 1
    while not any(output.handle == 0 for output in runner.step()):
        steps += 1
    runner.remove(0)
    return steps


@pytest.mark.parametrize(("bound", "steps"), [(1.0, 13), (0.0, 1)])
def test_prompts_come_in_parts_beside_running_answers(
    tiny_engine: Callable[[str], Path], bound: float, steps: int
) -> None:
    runner = OpenVinoModelRunner(EngineOptions("openvino", str(tiny_engine("llama")), 2048, itl_bound=bound))
    prompt = GenerationRequest(tuple(range(5, 205)), 9)
    assert steps_to_first_token(runner, prompt) == 1
    runner.add(1, GenerationRequest((7, 8, 9), 100))
    list(runner.step())
    assert steps_to_first_token(runner, replace(prompt, prompt_ids=prompt.prompt_ids[::-1])) == steps


@pytest.mark.parametrize(("shares", "steps"), [(True, 1), (False, 5)])
def test_tenants_share_prefixes_only_if_they_may(tiny_engine: Callable[[str], Path], shares: bool, steps: int) -> None:
    options = EngineOptions("openvino", str(tiny_engine("llama")), 2048, max_num_tokens=32, share_prefixes=shares)
    runner = OpenVinoModelRunner(options)
    prompt = GenerationRequest(tuple(range(5, 150)), 9, metadata=RequestMetadata(tenant="a"))
    assert steps_to_first_token(runner, prompt) == 5
    assert steps_to_first_token(runner, prompt) == 1
    assert steps_to_first_token(runner, replace(prompt, metadata=RequestMetadata(tenant="b"))) == steps
