"""How what the library pushes is announced and reported: once for all that came."""

from __future__ import annotations

import select
from pathlib import Path

from inflight.runtime.backends.llmapi.event_loop import LlmEventLoop
from inflight.runtime.backends.llmapi.library import LlmApiLibrary
from inflight.runtime.backends.llmapi.model_runner import LlmApiModelRunner
from inflight.runtime.backends.llmapi.output_reader import OutputReader
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.engine.interface import StepOutput
from inflight.runtime.messages import FinishReason, GenerationRequest
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.llmapi.standin import (
    END_IDS,
    FAILING,
    PROMPT,
    STANDIN_OPTIONS,
    engine_dir,
    imported,
    options_of,
)

ANSWERS, TOKENS = 16, 10
PATIENCE = 60.0


def test_one_look_finds_what_a_step_brought_to_all(tmp_path: Path) -> None:
    """Sixteen answers of ten tokens: were each announced by itself, there would be 160 looks."""
    directory = engine_dir(tmp_path / "engine", {"step_seconds": 0.02}, max_batch_size=ANSWERS)
    with imported():
        library = LlmApiLibrary.load()
        loop = LlmEventLoop(library.create_llm(LlmApiSettings.from_options(options_of(directory))), library)
        for handle in range(ANSWERS):
            request = GenerationRequest((100 + handle,), TOKENS)
            params = library.sampling_params({"end_id": 2, "ignore_eos": True, "max_tokens": TOKENS})
            arguments = {"inputs": [100 + handle], "sampling_params": params, "streaming": True}
            loop.add(handle, arguments, OutputReader(handle, request, ()))
        found: list[StepOutput] = []
        looks = 0
        while sum(len(progress.token_ids) for progress in found) < ANSWERS * TOKENS:
            assert select.select([loop.arrivals], [], [], PATIENCE)[0], f"silence after {found}"
            found += loop.drain()
            looks += 1
        loop.close()
    for handle in range(ANSWERS):
        mine = [progress for progress in found if progress.handle == handle]
        assert [token for progress in mine for token in progress.token_ids] == [100 + handle] * TOKENS
        assert [progress.finish_reason is None for progress in mine] == [True] * (len(mine) - 1) + [False]
    assert looks < ANSWERS * TOKENS / 2, looks


def test_steps_that_came_since_the_last_look_are_told_as_one(tmp_path: Path) -> None:
    with imported():
        stepper = LlmApiModelRunner(options_of(engine_dir(tmp_path / "engine", STANDIN_OPTIONS)))
        try:
            stepper.add(1, GenerationRequest(PROMPT, 5, END_IDS, log_probs=True))
            stepper.add(2, GenerationRequest((FAILING, 7), 5, END_IDS))
            wait_until(lambda: sum(progress.finish_reason is not None for progress in stepper._loop._outputs) == 2)
            found = {progress.handle: progress for progress in stepper.step()}
            told = list(stepper.step())
        finally:
            stepper.close()
    assert found.keys() == {1, 2}
    assert found[1] == StepOutput(1, (100, 101, 102, 100, 101), FinishReason.LENGTH, (-0.5,) * 5)
    assert (found[2].token_ids, found[2].finish_reason) == ((FAILING, 7), FinishReason.ERROR)
    assert found[2].error is not None
    assert told == []
