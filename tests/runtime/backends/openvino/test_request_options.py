"""What the embedded engine does with each wish of a request, against transformers on the same checkpoint."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inflight.common.request_error import RequestError
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import DecodingGuide, FinishReason, GenerationRequest, GuideType, LogProb, SamplingConfig
from tests.fixtures.errors import raises
from tests.runtime.backends.drive_runner import run

PROMPT = tuple(range(10, 50))
VOCABULARY = 1536


@pytest.fixture(scope="module")
def stepper(tiny_engine: Callable[[str], Path]) -> OpenVinoModelRunner:
    return OpenVinoModelRunner(
        EngineOptions("openvino", str(tiny_engine("llama")), 64 * 32, max_num_sequences=8, max_num_tokens=32)
    )


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[[str], Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)


def log_softmax(model: Any, prompt: tuple[int, ...], answer: list[int]) -> Any:
    """The model's own log probabilities, a row of the vocabulary for each token of the answer."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(),
        SamplingConfig(temperature=0.3, top_p=1.0, seed=1),
        SamplingConfig(temperature=2.0, top_k=9, seed=2),
        SamplingConfig(temperature=1.5, top_p=0.7, seed=3),
        SamplingConfig(repetition_penalty=1.7, presence_penalty=0.5, frequency_penalty=0.5),
    ],
    ids=str,
)
def test_log_probs_are_those_of_the_models_own_distribution(
    stepper: OpenVinoModelRunner, model: Any, sampling: SamplingConfig
) -> None:
    (answer,) = run(stepper, GenerationRequest(PROMPT, 24, sampling=sampling, log_probs=True))
    rows = log_softmax(model, PROMPT, answer.token_ids)
    expected = [float(row[token]) for row, token in zip(rows, answer.token_ids, strict=True)]
    assert answer.log_probs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("chunk", [7, 512])
@pytest.mark.parametrize("reuse", [True, False])
def test_log_probs_of_prompts_are_the_models_own(
    tiny_engine: Callable[[str], Path], model: Any, chunk: int, reuse: bool
) -> None:
    """Also where the prompt's blocks are known already, or computed beside it for another request."""
    options = EngineOptions("openvino", str(tiny_engine("llama")), 64 * 32, 8, chunk, kv_cache_reuse=reuse)
    runner, prompt = OpenVinoModelRunner(options), PROMPT * 5
    request = GenerationRequest(prompt, 2, log_probs=True, top_log_probs=3, prompt_log_probs=True)
    plain = GenerationRequest(prompt, 2)
    first, *_, second = [*run(runner, request, plain), *run(runner, plain, replace(request, top_log_probs=0))]
    rows = log_softmax(model, prompt[:1], list(prompt[1:]))
    expected = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
    for answer in (first, second):
        assert len(answer.log_probs) == 2
        assert math.isnan(answer.prompt_log_probs[0])
        assert answer.prompt_log_probs[1:] == pytest.approx(expected, abs=1e-3)
    tops = [each.top for each in first.prompt_log_probs[1:] if isinstance(each, LogProb)]
    assert [[token for token, _ in top] for top in tops] == rows.topk(3).indices.tolist()
    assert [value for top in tops for _, value in top] == pytest.approx(rows.topk(3).values.ravel().tolist(), abs=1e-3)
    assert {each.top for each in second.prompt_log_probs if isinstance(each, LogProb)} == {()}
    assert runner._pool.unused == 64


def test_the_end_token_has_no_log_prob(stepper: OpenVinoModelRunner) -> None:
    (answer,) = run(stepper, GenerationRequest(PROMPT, 24))
    end = answer.token_ids[7]
    (ended,) = run(stepper, GenerationRequest(PROMPT, 24, end_ids=(end,), log_probs=True))
    assert ended.reason is FinishReason.STOP
    assert len(ended.log_probs) == len(ended.token_ids) == answer.token_ids.index(end)


def test_min_tokens_holds_the_end_off(stepper: OpenVinoModelRunner) -> None:
    ends = tuple(run(stepper, GenerationRequest(PROMPT, 24))[0].token_ids[:3])
    early, late, whole = run(
        stepper,
        GenerationRequest(PROMPT, 24, end_ids=ends),
        GenerationRequest(PROMPT, 24, end_ids=ends, sampling=SamplingConfig(min_tokens=9)),
        GenerationRequest(PROMPT, 5, end_ids=ends, sampling=SamplingConfig(min_tokens=900)),
    )
    assert (early.token_ids, early.reason) == ([], FinishReason.STOP)
    assert len(late.token_ids) >= 9
    assert not set(late.token_ids) & set(ends)
    assert (len(whole.token_ids), whole.reason) == (5, FinishReason.LENGTH)


def reference_beams(model: Any, request: GenerationRequest) -> list[list[int]]:
    sampling = request.sampling
    ids = torch.tensor([request.prompt_ids])
    given = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_tokens,
        num_beams=sampling.beam_width,
        num_return_sequences=sampling.beam_width,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        do_sample=False,
        eos_token_id=list(request.end_ids) or None,
        pad_token_id=0,
    )
    found = []
    for row in given[:, len(request.prompt_ids) :].tolist():
        end = next((number for number, token in enumerate(row) if token in request.end_ids), len(row))
        found.append(row[:end])
    return found


@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("ends", [0, 150])
def test_beams_are_those_of_transformers(
    stepper: OpenVinoModelRunner, model: Any, early_stopping: bool, length_penalty: float, ends: int
) -> None:
    """With 150 end tokens most beams end early, with none all go to the full length."""
    source = random.Random(ends + 1)
    requests = [
        GenerationRequest(
            tuple(source.randrange(10, VOCABULARY) for _ in range(source.randrange(3, 50))),
            max_tokens=12,
            end_ids=tuple(source.sample(range(VOCABULARY), ends)),
            sampling=SamplingConfig(beam_width=width, length_penalty=length_penalty, early_stopping=early_stopping),
        )
        for width in (2, 5)
    ]
    for request, answer in zip(requests, run(stepper, *requests), strict=True):
        assert [list(beam.token_ids) for beam in answer.beams] == reference_beams(model, request)
        assert answer.token_ids == []
        assert answer.reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_a_beam_has_the_sum_of_its_log_probs(stepper: OpenVinoModelRunner, model: Any) -> None:
    request = GenerationRequest(PROMPT, 10, sampling=SamplingConfig(beam_width=3), log_probs=True)
    told, plain = run(stepper, request, replace(request, log_probs=False))
    for beam, other in zip(told.beams, plain.beams, strict=True):
        rows = log_softmax(model, PROMPT, list(beam.token_ids))
        expected = [float(row[token]) for row, token in zip(rows, beam.token_ids, strict=True)]
        assert list(beam.log_probs) == pytest.approx(expected, abs=1e-4)
        assert beam.cumulative_log_prob == pytest.approx(sum(expected), abs=1e-3)
        assert (other.log_probs, other.cumulative_log_prob) == ((), beam.cumulative_log_prob)
    assert len({beam.token_ids for beam in told.beams}) == 3


def reference_greedy(model: Any, request: GenerationRequest) -> list[int]:
    """Penalties by their definition: repetition counts prompt and answer, presence and frequency the answer alone."""
    sampling = request.sampling
    answer: list[int] = []
    for _ in range(request.max_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[*request.prompt_ids, *answer]])).logits[0, -1].clone()
        for token in {*request.prompt_ids, *answer}:
            factor = sampling.repetition_penalty
            logits[token] = logits[token] * factor if logits[token] < 0 else logits[token] / factor
        for token in set(answer):
            logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * answer.count(token)
        answer.append(int(logits.argmax()))
    return answer


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(repetition_penalty=1.5),
        SamplingConfig(repetition_penalty=0.7),
        SamplingConfig(presence_penalty=1.5),
        SamplingConfig(presence_penalty=-2.0),
        SamplingConfig(frequency_penalty=0.9),
        SamplingConfig(frequency_penalty=-0.4, presence_penalty=0.3, repetition_penalty=1.1),
    ],
    ids=str,
)
def test_penalties_count_what_they_say(stepper: OpenVinoModelRunner, model: Any, sampling: SamplingConfig) -> None:
    """The prompt is the model's own answer, so that what counts the prompt and what doesn't differ."""
    (start,) = run(stepper, GenerationRequest(PROMPT, 12))
    request = GenerationRequest((*PROMPT, *start.token_ids), 24, sampling=sampling)
    (answer,) = run(stepper, request)
    assert answer.token_ids == reference_greedy(model, request)


def test_all_64_bits_of_a_seed_count(stepper: OpenVinoModelRunner) -> None:
    seeds = [1, 1 << 32, 1 << 63, (1 << 64) - 1, 0]
    answers = run(
        stepper, *(GenerationRequest(PROMPT, 20, sampling=SamplingConfig(top_p=1.0, seed=seed)) for seed in seeds)
    )
    assert len({tuple(answer.token_ids) for answer in answers}) == 5


def test_the_lowest_temperatures_are_greedy(stepper: OpenVinoModelRunner) -> None:
    plain, cold, colder = run(
        stepper,
        GenerationRequest(PROMPT, 30),
        GenerationRequest(PROMPT, 30, sampling=SamplingConfig(temperature=1e-30, top_k=50)),
        GenerationRequest(PROMPT, 30, sampling=SamplingConfig(temperature=1e-30, top_p=0.9)),
    )
    assert plain.token_ids == cold.token_ids == colder.token_ids


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (SamplingConfig(min_p=1.5), "min_p is 1.5"),
        (SamplingConfig(beam_width=2, top_p=0.5), "temperature, top_k or top_p"),
        (SamplingConfig(beam_width=2, repetition_penalty=1.2), "repetition_penalty"),
        (SamplingConfig(beam_width=2, min_tokens=3), "min_tokens"),
        (SamplingConfig(beam_width=40), "beam_width is 40"),
    ],
)
def test_what_the_library_cannot_take_is_refused_by_name(
    stepper: OpenVinoModelRunner, sampling: SamplingConfig, named: str
) -> None:
    with raises(RequestError, "invalid_parameter", naming=named):
        run(stepper, GenerationRequest(PROMPT, 5, sampling=sampling))


def test_bad_words_stay_out_and_biases_count(stepper: OpenVinoModelRunner) -> None:
    (plain,) = run(stepper, GenerationRequest(PROMPT, 12))
    first, second, third = plain.token_ids[:3]
    alone, begun, liked, disliked = run(
        stepper,
        GenerationRequest(PROMPT, 12, bad_ids=((second,),)),
        GenerationRequest(PROMPT, 12, bad_ids=((first, second, third), (third, second))),
        GenerationRequest(PROMPT, 12, logit_bias=((77, 1e30),)),
        GenerationRequest(PROMPT, 12, logit_bias=((first, float("-inf")),)),
    )
    assert second not in alone.token_ids
    assert begun.token_ids[:2] == plain.token_ids[:2]
    assert begun.token_ids[2] != third
    assert liked.token_ids == [77] * 12
    assert disliked.token_ids[0] != first


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"bad_ids": ((5,), (3, VOCABULARY))}, "invalid_token_ids"),
        ({"logit_bias": ((VOCABULARY, 1.0),)}, "invalid_token_ids"),
        ({"logit_bias": ((5, float("nan")),)}, "invalid_parameter"),
        ({"allowed_ids": (VOCABULARY,)}, "invalid_token_ids"),
    ],
)
def test_bad_words_and_biases_are_checked(stepper: OpenVinoModelRunner, fields: dict[str, Any], code: str) -> None:
    with raises(RequestError, code, naming=next(iter(fields))):
        run(stepper, GenerationRequest(PROMPT, 5, **fields))


@pytest.mark.parametrize("beams", [1, 2])
def test_too_many_alternatives_are_refused(stepper: OpenVinoModelRunner, beams: int) -> None:
    request = GenerationRequest(PROMPT, 5, sampling=SamplingConfig(beam_width=beams), top_log_probs=22 - beams)
    with raises(RequestError, "invalid_parameter", naming="num_top_log_probs"):
        run(stepper, request)


def test_a_guide_and_bad_words_that_leave_nothing_end_their_own_request(stepper: OpenVinoModelRunner) -> None:
    guide = DecodingGuide(GuideType.REGEX, "[ab]{9}")
    every = tuple((token,) for token in range(VOCABULARY))
    barred, plain = run(stepper, GenerationRequest(PROMPT, 9, guide=guide, bad_ids=every), GenerationRequest(PROMPT, 9))
    assert (barred.reason, barred.error and barred.error[1]) == (FinishReason.ERROR, "invalid_parameter")
    assert plain.reason is FinishReason.LENGTH


def test_equal_prompts_are_computed_once(tiny_engine: Callable[[str], Path]) -> None:
    """Also those whose last block is not full: the answers of `num_return_sequences` differ by their seeds."""
    options = EngineOptions("openvino", str(tiny_engine("llama")), 64 * 32, max_num_sequences=8, max_num_tokens=32)
    stepper = OpenVinoModelRunner(options)
    requests = [GenerationRequest(PROMPT, 4, sampling=SamplingConfig(top_p=1.0, seed=seed)) for seed in range(8)]
    for handle, request in enumerate(requests):
        stepper.add(handle, request)
    found: dict[int, list[int]] = {handle: [] for handle in range(8)}
    for step in range(5):
        outputs = list(stepper.step())
        assert len(outputs) == (8 if step else 0)
        for output in outputs:
            found[output.handle] += output.token_ids
    assert list(found.values()) == [run(stepper, request)[0].token_ids for request in requests]
