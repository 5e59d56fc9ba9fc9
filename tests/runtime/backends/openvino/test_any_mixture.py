"""Whatever runs beside a request, begins as it does, or was cancelled before: its answer is the one it gets alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import (
    DecodingGuide,
    FinishReason,
    GenerationRequest,
    GuideType,
    RequestMetadata,
    SamplingConfig,
)
from tests.runtime.backends.drive_runner import CollectedOutput, run
from tests.runtime.backends.openvino.test_adapters import write_adapter

VOCABULARY = 1536
BLOCKS = 256
REQUESTS = 160
WAYS = ("plain", "draft", "lookup", "adapters")
CHUNKS = (1, 7, 96, 512)
QUICK = [*((way, 7, 0) for way in WAYS), *((way, 96, 0) for way in WAYS), ("plain", 1, 0)]
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
            "whole prompts": lambda: {"chunked_context": False, "kv_cache_reuse": False},
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
        bad_ids=source.choice([(), (), ((7,), (8, 9))]) if sampling.beam_width == 1 else (),
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


@pytest.mark.parametrize(
    ("way", "chunk", "seed"),
    [
        pytest.param(*one, marks=[] if one in QUICK else pytest.mark.slow)
        for one in itertools.product(WAYS, CHUNKS, (0, 1, 2))
    ],
)
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


NUMBERS = [0.0, 1e-38, 1e-6, 0.01, 0.5, 1.0, 1.5, 2.0, 100.0, 1e6, 3e38, -1e-6, -0.5, -2.0, -3e38]
STRANGE = [float("nan"), float("inf"), -float("inf"), 1e300]
COUNTS = [0, 1, 2, 5, 40, VOCABULARY - 1, VOCABULARY, 2**31 - 1, -1]
STRANGE_GUIDES = [
    ("json", ""),
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
    ("json_schema", '{"type": '),
    ("regex", "[a-z ]{3,40}"),
    ("regex", "((("),
    ("ebnf_grammar", 'root ::= "a" root "b" | "c"'),
    ("ebnf_grammar", "root ::= root"),
]


def draw_strange(source: random.Random) -> GenerationRequest:
    """Mostly what can be served: a request in which everything is strange is refused for the first of it."""

    def some(usual: Any, values: list[Any], share: float = 0.25) -> Any:
        return source.choice(values) if source.random() < share else usual

    sampling = SamplingConfig(
        temperature=some(None, [*NUMBERS, *STRANGE], 0.4),
        top_k=some(0, COUNTS, 0.4),
        top_p=some(0.0, [*NUMBERS, 0.9, 0.1], 0.4),
        seed=some(None, [0, 1, 2**32, 2**64 - 1]),
        repetition_penalty=some(1.0, [*NUMBERS, *STRANGE]),
        presence_penalty=some(0.0, [*NUMBERS, *STRANGE]),
        frequency_penalty=some(0.0, [*NUMBERS, *STRANGE]),
        min_tokens=some(0, COUNTS),
        beam_width=some(1, [2, 3, 8]),
        length_penalty=some(0.0, [*NUMBERS, *STRANGE]),
        early_stopping=source.random() < 0.5,
    )
    guide_type, text = source.choice(STRANGE_GUIDES)
    return GenerationRequest(
        tuple(source.randrange(VOCABULARY) for _ in range(source.randrange(1, 100))),
        source.randrange(1, 40),
        tuple(source.sample(range(VOCABULARY), source.choice([0, 1, 1, 40, 1000]))),
        sampling,
        bad_ids=some((), [((7,), (8, 9), (7, 7, 7))], 0.2),
        logit_bias=some((), [((5, 100.0), (6, -100.0))], 0.2),
        log_probs=source.random() < 0.5,
        guide=DecodingGuide(GuideType(guide_type), text) if source.random() < 0.3 else None,
    )


def refusal_of(runner: OpenVinoModelRunner, request: GenerationRequest) -> RequestError | None:
    try:
        runner.limits.check(request)
        runner.check(request)
    except RequestError as refusal:
        return refusal
    return None


def check_whole(request: GenerationRequest, answer: CollectedOutput) -> None:
    assert answer.reason in (FinishReason.STOP, FinishReason.LENGTH)
    beams = request.sampling.beam_width
    if beams > 1:
        assert 1 <= len(answer.beams) <= beams
        assert all(len(beam.token_ids) <= request.max_tokens for beam in answer.beams)
        return
    assert (len(answer.token_ids) == request.max_tokens) == (answer.reason is FinishReason.LENGTH) or request.end_ids
    assert len(answer.token_ids) <= request.max_tokens
    assert len(answer.log_probs) == (len(answer.token_ids) if request.log_probs else 0)
    assert not set(answer.token_ids[:-1]) & set(request.end_ids) or not request.end_ids


@pytest.mark.parametrize(
    "way", ["plain", "lookup", *(pytest.param(way, marks=pytest.mark.slow) for way in ("draft", "whole prompts"))]
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))])
def test_nothing_that_is_asked_for_ends_the_engine(
    runner_of: Callable[[str, int], OpenVinoModelRunner], way: str, seed: int
) -> None:
    """Whatever it is, it is refused with a sentence, or it ends; no step raises."""
    source, runner = random.Random(seed), runner_of(way, 96)
    drawn = [draw_strange(source) for _ in range(60)]
    refusals = [refusal_of(runner, request) for request in drawn]
    requests = [request for request, refusal in zip(drawn, refusals, strict=True) if refusal is None]
    assert 3 < len(requests) < 58
    assert {refusal.code for refusal in refusals if refusal} <= {"invalid_parameter", "prompt_too_long"}
    assert all(20 < len(str(refusal)) < 400 and "\n" not in str(refusal) for refusal in refusals if refusal)
    for start in range(0, len(requests), 8):
        batch = requests[start : start + 8]
        for request, answer in zip(batch, run(runner, *batch), strict=True):
            check_whole(request, answer)
    assert runner._pool.unused == BLOCKS
