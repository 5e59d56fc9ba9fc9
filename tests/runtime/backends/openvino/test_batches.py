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
from inflight.runtime.messages import FinishReason, GenerationRequest, RequestMetadata, SamplingConfig
from tests.runtime.backends.drive_runner import run

BLOCKS = 400


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


@pytest.mark.parametrize("chunk", [1, 7, 96, 512])
def test_answers_are_the_same_alone_and_beside_others(tiny_engine: Callable[[str], Path], chunk: int) -> None:
    engine = runner(tiny_engine("llama"), chunk)
    sampled = SamplingConfig(top_p=0.9, temperature=0.8)
    requests = [
        GenerationRequest(
            prompt,
            12,
            sampling=replace(sampled, seed=place) if place % 2 else SamplingConfig(),
            log_probs=place % 3 == 0,
        )
        for place, prompt in enumerate(prompts(40))
    ]
    fresh = runner(tiny_engine("llama"))
    together = run(engine, *requests)
    for request, answer in zip(requests, together, strict=True):
        (alone,) = run(fresh, request)
        assert alone.token_ids == answer.token_ids
        assert alone.log_probs == pytest.approx(answer.log_probs, abs=1e-4)
    assert engine._pool.unused == fresh._pool.unused == BLOCKS


def test_removed_requests_leave_no_trace(tiny_engine: Callable[[str], Path]) -> None:
    """Removed at any step, also within their prompt: what they computed may be reused, and nothing else."""
    engine, rng = runner(tiny_engine("llama"), 16), random.Random(2)
    for handle, prompt in enumerate(prompts(60, seed=2)):
        engine.add(handle, GenerationRequest(prompt, 20))
        for _ in range(rng.randrange(6)):
            for output in engine.step():
                assert output.finish_reason in (None, FinishReason.LENGTH)
        for running in [each for each in engine._running if rng.random() < 0.4]:
            engine.remove(running)
    for running in list(engine._running):
        engine.remove(running)
    assert engine._pool.unused == BLOCKS
    requests = [GenerationRequest(prompt, 12) for prompt in prompts(20, seed=2)]
    fresh = run(runner(tiny_engine("llama")), *requests)
    assert [each.token_ids for each in run(engine, *requests)] == [each.token_ids for each in fresh]


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
