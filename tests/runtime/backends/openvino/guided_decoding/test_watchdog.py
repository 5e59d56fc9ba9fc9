"""What guides that passed their trial may still do to the engine is bounded."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.openvino.tokenizer import load_tokenizer
from inflight.runtime.backends.openvino.guided_decoding import watchdog
from inflight.runtime.backends.openvino.guided_decoding.guide_cache import digest
from inflight.runtime.backends.openvino.guided_decoding.probe_process import GuideProbeResult
from inflight.runtime.backends.openvino.guided_decoding.watchdog import CompiledGuides
from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import DecodingGuide, FinishReason, GenerationRequest, GuideType, RequestError
from tests.fixtures.errors import raises
from tests.runtime.backends.drive_runner import run

PROMPT = tuple(range(10, 50))


@pytest.fixture(scope="module")
def options(tiny_engine: Callable[[str], Path]) -> EngineOptions:
    return EngineOptions("openvino", str(tiny_engine("llama")), 256 * 32, max_num_sequences=8, max_num_tokens=64)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth(options: EngineOptions, guides: int) -> int:
    """Bytes by which the process grows with so many guides, all different, after the first few; none is tried."""
    stepper = OpenVinoModelRunner(options)
    grown, before = 0, 0
    for number in range(guides + 20):
        properties = {f"field_{number}_{place}": {"type": "string", "maxLength": 9} for place in range(12)}
        guide = DecodingGuide(GuideType.JSON_SCHEMA, json.dumps({"type": "object", "properties": properties}))
        stepper._guides._keep(digest(guide), GuideProbeResult(""))
        run(stepper, GenerationRequest(PROMPT, 2, (1,), guide=guide))
        grown = resident_bytes()
        if number == 20:
            before = grown
    return grown - before


@pytest.mark.slow
def test_the_memory_of_ever_new_guides_is_bounded(options: EngineOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MAX_COMPILED_BYTES", 20 * watchdog.MIN_GUIDE_BYTES)
    bounded = growth(options, 400)
    monkeypatch.setattr(watchdog, "MAX_COMPILED_BYTES", 1 << 40)
    unbounded = growth(options, 400)
    assert unbounded > 16 << 20, "the library no longer keeps what it compiled; nothing needs to be bounded"
    assert bounded < unbounded / 4


def test_a_running_answer_outlives_the_dropping_of_its_guide(options: EngineOptions) -> None:
    stepper = OpenVinoModelRunner(options)
    request = GenerationRequest(PROMPT, 100, (1,), guide=DecodingGuide(GuideType.REGEX, "(ab){20}c"))
    stepper._guides._keep(digest(request.guide), GuideProbeResult(""))
    (undisturbed,) = run(stepper, request)
    stepper.add(5, request)
    tokens: list[int] = []
    reason = None
    while reason is None:
        stepper._compiled_guides._drop()
        for progress in stepper.step():
            tokens += progress.token_ids
            reason = progress.finish_reason
    assert (tokens, reason) == (undisturbed.token_ids, FinishReason.STOP)


def test_only_what_is_new_counts(options: EngineOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    drops = []
    compiled = CompiledGuides(load_tokenizer(Path(options.model_dir)), 1536)
    monkeypatch.setattr(compiled, "_drop", lambda: drops.append(len(compiled._kept)))
    for number in [1, 1, 1, 2, 1, 2, 3]:
        compiled.add(bytes([number]), watchdog.MAX_COMPILED_BYTES // 2)
    assert drops == [2]


def test_looking_at_every_step_changes_no_answer(options: EngineOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = OpenVinoModelRunner(options)
    guide = DecodingGuide(GuideType.REGEX, "(ab){200}c")
    stepper._guides._keep(digest(guide), GuideProbeResult(""))
    requests = [GenerationRequest(PROMPT, 300), GenerationRequest(PROMPT, 300, (1,), guide=guide)]
    plain = run(stepper, *requests)
    monkeypatch.setattr(watchdog, "SUSPICIOUS_SECONDS", 0.0)
    monkeypatch.setattr(watchdog, "STEPS_BETWEEN_PROBES", 1)
    assert run(stepper, *requests) == plain
    assert next(stepper._stall_detector._numbers) > (1 << 62) + 20


@pytest.mark.slow
def test_a_guide_that_fooled_its_trial_is_ended_alone(options: EngineOptions) -> None:
    """Its steps take longer and longer; the other answer gets its last token, and the guide is refused thereafter."""
    stepper = OpenVinoModelRunner(options)
    ambiguous = DecodingGuide(GuideType.EBNF_GRAMMAR, "root ::= x\nx ::= x x x | [a-z] | x x")
    stepper._guides._keep(digest(ambiguous), GuideProbeResult(""))
    started = time.monotonic()
    other, guilty = run(
        stepper, GenerationRequest(PROMPT, 1500), GenerationRequest(PROMPT, 1500, (1,), guide=ambiguous)
    )
    assert len(other.token_ids) == 1500
    assert guilty.reason is FinishReason.ERROR
    assert guilty.error is not None
    assert guilty.error[0].startswith("guided_decoding_guide slows the search for allowed tokens down")
    assert time.monotonic() - started < 100
    with raises(RequestError, "invalid_parameter", naming="guided_decoding_guide"):
        stepper.ready(GenerationRequest(PROMPT, 5, (1,), guide=ambiguous))
