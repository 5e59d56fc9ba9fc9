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

from inflight.runtime.engine import EngineOptions
from inflight.runtime.messages import FinishReason, GenerationRequest, Guide, GuideType, RequestError, Sampling
from inflight.runtime.openvino import OpenVinoStepper
from tests.runtime.stepping import run

PROMPT = tuple(range(10, 50))
VOCABULARY = 1536


@pytest.fixture(scope="module")
def stepper(tiny_engine: Callable[[str], Path]) -> OpenVinoStepper:
    return OpenVinoStepper(
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
        Sampling(),
        Sampling(temperature=0.3, top_p=1.0, seed=1),
        Sampling(temperature=2.0, top_k=9, seed=2),
        Sampling(temperature=1.5, top_p=0.7, seed=3),
        Sampling(repetition_penalty=1.7, presence_penalty=0.5, frequency_penalty=0.5),
    ],
    ids=str,
)
def test_log_probs_are_those_of_the_models_own_distribution(
    stepper: OpenVinoStepper, model: Any, sampling: Sampling
) -> None:
    (answer,) = run(stepper, GenerationRequest(PROMPT, 24, sampling=sampling, log_probs=True))
    rows = log_softmax(model, PROMPT, answer.token_ids)
    expected = [float(row[token]) for row, token in zip(rows, answer.token_ids, strict=True)]
    assert answer.log_probs == pytest.approx(expected, abs=1e-4)


def test_log_probs_change_no_token_and_come_only_where_asked_for(stepper: OpenVinoStepper) -> None:
    request = GenerationRequest(PROMPT, 24, sampling=Sampling(temperature=1.0, top_k=40, seed=5))
    plain, told = run(stepper, request, replace(request, log_probs=True))
    assert plain.token_ids == told.token_ids
    assert (len(plain.log_probs), len(told.log_probs)) == (0, 24)


def test_the_end_token_has_no_log_prob(stepper: OpenVinoStepper) -> None:
    (answer,) = run(stepper, GenerationRequest(PROMPT, 24))
    end = answer.token_ids[7]
    (ended,) = run(stepper, GenerationRequest(PROMPT, 24, end_ids=(end,), log_probs=True))
    assert ended.reason is FinishReason.STOP
    assert len(ended.log_probs) == len(ended.token_ids) == answer.token_ids.index(end)


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
    stepper: OpenVinoStepper, model: Any, early_stopping: bool, length_penalty: float, ends: int
) -> None:
    """With 150 end tokens most beams end early, with none all go to the full length."""
    source = random.Random(ends + 1)
    requests = [
        GenerationRequest(
            tuple(source.randrange(10, VOCABULARY) for _ in range(source.randrange(3, 50))),
            max_tokens=12,
            end_ids=tuple(source.sample(range(VOCABULARY), ends)),
            sampling=Sampling(beam_width=width, length_penalty=length_penalty, early_stopping=early_stopping),
        )
        for width in (2, 5)
    ]
    for request, answer in zip(requests, run(stepper, *requests), strict=True):
        assert [list(beam.token_ids) for beam in answer.beams] == reference_beams(model, request)
        assert answer.token_ids == []
        assert answer.reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_a_beam_has_the_sum_of_its_log_probs(stepper: OpenVinoStepper, model: Any) -> None:
    request = GenerationRequest(PROMPT, 10, sampling=Sampling(beam_width=3), log_probs=True)
    told, plain = run(stepper, request, replace(request, log_probs=False))
    for beam, other in zip(told.beams, plain.beams, strict=True):
        rows = log_softmax(model, PROMPT, list(beam.token_ids))
        expected = [float(row[token]) for row, token in zip(rows, beam.token_ids, strict=True)]
        assert list(beam.log_probs) == pytest.approx(expected, abs=1e-4)
        assert beam.cumulative_log_prob == pytest.approx(sum(expected), abs=1e-3)
        assert (other.log_probs, other.cumulative_log_prob) == ((), beam.cumulative_log_prob)
    assert len({beam.token_ids for beam in told.beams}) == 3


def test_beams_and_single_answers_run_side_by_side(stepper: OpenVinoStepper) -> None:
    single = GenerationRequest(PROMPT, 20)
    wide = GenerationRequest(tuple(range(300, 333)), 20, sampling=Sampling(beam_width=4))
    alone = [run(stepper, single)[0].token_ids, run(stepper, wide)[0].beams]
    together = run(stepper, single, wide)
    assert [together[0].token_ids, together[1].beams] == alone


def test_a_cancelled_beam_search_frees_its_blocks(stepper: OpenVinoStepper) -> None:
    """Each takes the whole cache of 64 blocks, so a block that did not come back would stop the ones after it."""
    wide = GenerationRequest(PROMPT, 4 * 32 * 4 - 40, sampling=Sampling(beam_width=4))
    assert stepper.limits.kv_blocks_of(wide) == 64
    for turns in range(1, 6):
        stepper.add(turns, wide)
        for _ in range(turns * 3):
            assert not [*stepper.step()]
        stepper.remove(turns)
    (answer,) = run(stepper, wide)
    assert len(answer.beams[0].token_ids) == wide.max_tokens
