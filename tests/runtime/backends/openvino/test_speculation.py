"""Speculation changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.runtime.backends.openvino.block_pool import BlockPool
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.backends.openvino.sampler import Sampler
from inflight.runtime.backends.openvino.sampling_state import SamplingState
from inflight.runtime.backends.openvino.sequence import Sequence
from inflight.runtime.backends.openvino.speculation import Speculation
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import (
    GenerationRequest,
    SamplingConfig,
)
from tests.fixtures.errors import raises
from tests.runtime.backends.drive_runner import run

VOCABULARY = 1536
DRAFTED = 4
TinyEngine = Callable[[str], Path]


@pytest.fixture(scope="module")
def options(tiny_engine: TinyEngine) -> EngineOptions:
    return EngineOptions(
        "openvino", str(tiny_engine("llama")), 64 * 32, max_num_sequences=8, max_num_tokens=48, num_draft_tokens=DRAFTED
    )


@pytest.fixture(scope="module")
def plain(options: EngineOptions) -> OpenVinoModelRunner:
    return OpenVinoModelRunner(options)


@pytest.fixture(scope="module")
def steppers(options: EngineOptions, tiny_engine: TinyEngine) -> dict[str, OpenVinoModelRunner]:
    """A draft that is always right, since it is the model itself, one that is a stranger to it, and the lookup."""
    return {
        "good draft": OpenVinoModelRunner(replace(options, draft_dir=str(tiny_engine("llama")))),
        "bad draft": OpenVinoModelRunner(replace(options, draft_dir=str(tiny_engine("gemma2")))),
        "lookup": OpenVinoModelRunner(replace(options, prompt_lookup=True)),
    }


def test_the_better_the_draft_the_fewer_steps(
    plain: OpenVinoModelRunner, steppers: dict[str, OpenVinoModelRunner]
) -> None:
    """A stranger is asked again now and then; a draft with the answer's own noise is right for sampled answers too."""
    for sampling in (SamplingConfig(), SamplingConfig(top_p=0.9, seed=1)):
        request = GenerationRequest(tuple(range(10, 50)), 51, sampling=sampling)
        (bad,) = run(steppers["bad draft"], request)
        assert run(plain, request)[0].speculation is None
        assert bad.speculation is not None
        assert bad.speculation.accepted <= bad.speculation.drafted < 100
        assert bad.steps > 35
        (good,) = run(steppers["good draft"], request)
        assert good.speculation is not None
        assert good.speculation.accepted == good.speculation.drafted > 20
        assert good.steps == 51 - good.speculation.accepted


def test_lookup_finds_what_stood_in_the_prompt(
    steppers: dict[str, OpenVinoModelRunner], plain: OpenVinoModelRunner
) -> None:
    """The prompt holds the very answer, behind which the model says it again."""
    prompt = tuple(range(10, 50))
    (answer,) = run(plain, GenerationRequest(prompt, 40, sampling=SamplingConfig(repetition_penalty=1.0)))
    request = GenerationRequest((*prompt, *answer.token_ids, *prompt, *answer.token_ids[:2]), 40)
    (found,) = run(steppers["lookup"], request)
    assert found.speculation is not None
    assert found.steps == 40 - found.speculation.accepted


@pytest.mark.parametrize(("period", "draft"), [([5], [5] * 8), ([5, 6, 7], [5, 6, 7, 5, 6, 7, 5, 6])])
def test_lookup_goes_on_with_what_repeats_itself(period: list[int], draft: list[int]) -> None:
    request = GenerationRequest((*period * 4,), 40)
    sequence = Sequence(1, request, SamplingState(request), reuses=False, tenant="")
    speculation = Speculation(8, BlockPool(4), Sampler(VOCABULARY))
    assert speculation.propose([sequence]) == {1: draft}


def test_options_that_cannot_be_met_are_named(options: EngineOptions, tiny_engine: TinyEngine, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_engine("llama"), tmp_path / "other"))
    manifest = json.loads((other / "engine.json").read_text())
    (other / "engine.json").write_text(json.dumps(manifest | {"vocab_size": 999}))
    with raises(ValueError, naming="999"):
        OpenVinoModelRunner(replace(options, draft_dir=str(other)))
    (other / "engine.json").write_text(json.dumps(manifest))
    with raises(ValueError, naming="prompt lookup"):
        OpenVinoModelRunner(replace(options, draft_dir=str(other), prompt_lookup=True))
    with raises(ValueError, naming=("num_draft_tokens", "0")):
        OpenVinoModelRunner(replace(options, prompt_lookup=True, num_draft_tokens=0))
