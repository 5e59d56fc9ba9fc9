"""Whatever runs beside a request, begins as it does, or was cancelled before: its answer is the one it gets alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import DecodingGuide, GenerationRequest, GuideType, RequestMetadata, SamplingConfig
from tests.runtime.backends.drive_runner import CollectedOutput, run
from tests.runtime.backends.openvino.test_adapters import write_adapter

VOCABULARY = 1536
BLOCKS = 256
REQUESTS = 160
WAYS = ("plain", "draft", "lookup", "adapters")
CHUNKS = (1, 7, 96, 512)
GUIDES = (None, None, None, DecodingGuide(GuideType.REGEX, "[a-f ]{5,30}"), DecodingGuide(GuideType.JSON))


@pytest.fixture(scope="module")
def runner_of(
    tiny_engine: Callable[[str], Path], tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], OpenVinoModelRunner]:
    options = EngineOptions("openvino", str(tiny_engine("llama")), BLOCKS * 32, max_num_sequences=12)
    place, checkpoint = tmp_path_factory.mktemp("adapters"), tiny_checkpoint("llama")

    @cache
    def adapters() -> tuple[str, ...]:
        modules = (("q_proj", "v_proj", "down_proj"), ("k_proj", "o_proj"))
        return tuple(
            str(write_adapter(checkpoint, place / str(rank), rank, names, {"lora_alpha": 2 * rank}))
            for rank, names in zip((4, 9), modules, strict=True)
        )

    @cache
    def find(way: str, chunk: int) -> OpenVinoModelRunner:
        changes: dict[str, Callable[[], dict[str, Any]]] = {
            "plain": dict,
            "draft": lambda: {"draft_dir": str(tiny_engine("gemma2")), "num_draft_tokens": 3},
            "lookup": lambda: {"prompt_lookup": True},
            "adapters": lambda: {"adapters": adapters(), "draft_dir": str(tiny_engine("llama"))},
            "alone": lambda: {"kv_cache_reuse": False, "adapters": adapters()},
        }
        return OpenVinoModelRunner(replace(options, max_num_tokens=chunk, **changes[way]()))

    return find


def draw(source: random.Random, base: list[int], adapters: bool) -> GenerationRequest:
    """Prompts share, extend and repeat each other."""
    prompt = base[: source.choice([1, 31, 32, 33, 64, 100, source.randrange(1, 150)])]
    prompt += source.choice([[], base[:40], [source.randrange(5, VOCABULARY) for _ in range(source.choice([1, 40]))]])
    sampling = source.choice(
        [
            SamplingConfig(),
            SamplingConfig(seed=source.randrange(3), temperature=0.8, top_p=0.9),
            SamplingConfig(seed=source.randrange(3), top_k=30, repetition_penalty=1.2, min_tokens=3),
            SamplingConfig(frequency_penalty=0.5, presence_penalty=0.7),
            SamplingConfig(seed=source.randrange(3), top_p=1.0, min_p=0.05),
        ]
    )
    guide = source.choice(GUIDES)
    if guide is None and source.random() < 0.15:
        sampling = SamplingConfig(beam_width=source.choice([2, 3]))
    return GenerationRequest(
        tuple(prompt),
        source.choice([1, 5, 20, 40]),
        tuple(source.sample(range(5, VOCABULARY), source.choice([0, 0, 40]))),
        sampling,
        bad_ids=source.choice([(), (), ((7,), (8, 9))]),
        log_probs=source.random() < 0.5,
        prompt_log_probs=sampling.beam_width == 1 and source.random() < 0.2,
        guide=guide,
        adapter=source.choice([0, 1, 2]) if adapters else 0,
        metadata=RequestMetadata(tenant=source.choice(["", "a", "b"])),
    )


def run_beside_each_other(
    runner: OpenVinoModelRunner, requests: list[GenerationRequest], source: random.Random
) -> dict[int, CollectedOutput]:
    """Return the whole answers; a third of the requests is cancelled at any step."""
    waiting, running, answers = list(enumerate(requests)), set[int](), dict[int, CollectedOutput]()
    while waiting or running:
        blocks = sum(runner.limits.kv_blocks_for(requests[handle]) for handle in running)
        while waiting and source.random() < 0.6:
            blocks += runner.limits.kv_blocks_for(waiting[0][1])
            if blocks > BLOCKS:
                break
            handle, request = waiting.pop(0)
            runner.check(request)
            runner.add(handle, request)
            running.add(handle)
            answers[handle] = CollectedOutput()
        for output in runner.step():
            answers[output.handle].add(output)
            if output.finish_reason is not None:
                running.remove(output.handle)
        for handle in [each for each in running if source.random() < 0.03]:
            runner.remove(handle)
            running.remove(handle)
            del answers[handle]
    return answers


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_each_answer_is_the_one_it_gets_alone(
    runner_of: Callable[[str, int], OpenVinoModelRunner], way: str, chunk: int, seed: int
) -> None:
    source, alone, runner = random.Random(f"{way} {chunk} {seed}"), runner_of("alone", 512), runner_of(way, chunk)
    base = [source.randrange(5, VOCABULARY) for _ in range(150)]
    requests = [draw(source, base, adapters=way == "adapters") for _ in range(REQUESTS if seed else 25)]
    answers = run_beside_each_other(runner, requests, source)
    for handle, answer in answers.items():
        (expected,) = run(alone, requests[handle])
        assert (answer.token_ids, answer.reason) == (expected.token_ids, expected.reason)
        assert answer.log_probs == pytest.approx(expected.log_probs, abs=1e-3)
        assert answer.prompt_log_probs == pytest.approx(expected.prompt_log_probs, abs=1e-3, nan_ok=True)
        assert [beam.token_ids for beam in answer.beams] == [beam.token_ids for beam in expected.beams]
    assert runner._pool.unused == BLOCKS
