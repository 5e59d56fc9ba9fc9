"""Whatever is asked for, in whatever mixture: it is refused with a sentence, or it ends; no step raises."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import DecodingGuide, FinishReason, GenerationRequest, GuideType, SamplingConfig
from tests.runtime.backends.drive_runner import CollectedOutput, run

VOCABULARY = 1536
NUMBERS = [0.0, 1e-38, 1e-6, 0.01, 0.5, 1.0, 1.5, 2.0, 100.0, 1e6, 3e38, -1e-6, -0.5, -2.0, -3e38]
STRANGE = [float("nan"), float("inf"), -float("inf"), 1e300]
COUNTS = [0, 1, 2, 5, 40, VOCABULARY - 1, VOCABULARY, 2**31 - 1, -1]
GUIDES = [
    ("json", ""),
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
    ("json_schema", '{"type": '),
    ("regex", "[a-z ]{3,40}"),
    ("regex", "((("),
    ("ebnf_grammar", 'root ::= "a" root "b" | "c"'),
    ("ebnf_grammar", "root ::= root"),
]


WAYS = ("plain", "draft", "lookup", "whole prompts")


@pytest.fixture(scope="module")
def stepper_of(tiny_engine: Callable[[str], Path]) -> Callable[[str], OpenVinoModelRunner]:
    """`stepper_of("plain")`: the engine of a deployment, loaded when it is first asked for."""
    options = EngineOptions("openvino", str(tiny_engine("llama")), 128 * 32, max_num_sequences=8, max_num_tokens=48)
    changes: dict[str, Callable[[], dict[str, Any]]] = {
        "plain": dict,
        "draft": lambda: {"draft_dir": str(tiny_engine("gemma2"))},
        "lookup": lambda: {"prompt_lookup": True},
        "whole prompts": lambda: {"chunked_context": False, "kv_cache_reuse": False},
    }
    loaded: dict[str, OpenVinoModelRunner] = {}

    def find(way: str) -> OpenVinoModelRunner:
        if way not in loaded:
            loaded[way] = OpenVinoModelRunner(replace(options, **changes[way]()))
        return loaded[way]

    return find


def draw(source: random.Random) -> GenerationRequest:
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
    guide_type, text = source.choice(GUIDES)
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


def refusal_of(stepper: OpenVinoModelRunner, request: GenerationRequest) -> RequestError | None:
    try:
        stepper.limits.check(request)
        stepper.check(request)
    except RequestError as refusal:
        return refusal
    return None


def accepted(stepper: OpenVinoModelRunner, request: GenerationRequest) -> bool:
    """Whether the stepper takes it; a refusal has a code and is one line."""
    refusal = refusal_of(stepper, request)
    if refusal is None:
        return True
    assert refusal.code in ("invalid_parameter", "prompt_too_long")
    assert 20 < len(str(refusal)) < 400
    assert "\n" not in str(refusal)
    return False


def ways_and_seeds() -> Iterator[Any]:
    """Two deployments are tried quickly, with one seed."""
    for way, seed in itertools.product(WAYS, range(30)):
        quick = seed == 0 and way in ("plain", "lookup")
        yield pytest.param(way, seed, marks=[] if quick else pytest.mark.slow)


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


@pytest.mark.parametrize(("way", "seed"), list(ways_and_seeds()))
def test_nothing_that_is_asked_for_ends_the_engine(
    stepper_of: Callable[[str], OpenVinoModelRunner], way: str, seed: int
) -> None:
    source, stepper = random.Random(seed), stepper_of(way)
    drawn = [draw(source) for _ in range(60)]
    requests = [request for request in drawn if accepted(stepper, request)]
    assert 3 < len(requests) < 58
    for start in range(0, len(requests), 8):
        batch = requests[start : start + 8]
        for request, answer in zip(batch, run(stepper, *batch), strict=True):
            check_whole(request, answer)
    # Were a block of the cache lost, this would not fit.
    (whole,) = run(stepper, GenerationRequest((5,) * 48, 2000))
    assert len(whole.token_ids) == 2000
