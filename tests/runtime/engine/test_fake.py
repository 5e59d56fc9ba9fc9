"""The fake engine answers as it says it does; adapters are found by name, and only the one in use is imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from inflight.runtime.engine.fake import LOG_PROB, FakeModelRunner, expected_beams
from inflight.runtime.engine.interface import BACKENDS, EngineOptions, StepOutput, load_model_runner
from inflight.runtime.messages import (
    Beam,
    FinishReason,
    GenerationRequest,
    SamplingConfig,
)
from tests.fixtures.errors import raises


def stepper_of(**extra: str) -> FakeModelRunner:
    return FakeModelRunner(EngineOptions("fake", "", kv_cache_tokens=1000, extra=extra))


def test_a_traceable_answer_tells_its_seed_and_its_tokens() -> None:
    stepper = stepper_of(traceable="1")
    stepper.add(1, GenerationRequest((7, 8, 512), 2, sampling=SamplingConfig(seed=5), log_probs=True))
    steps = [progress for _ in range(2) for progress in stepper.step()]
    assert steps == [StepOutput(1, (512,), None, (-0.5,)), StepOutput(1, (7,), FinishReason.LENGTH, (-7 / 1024,))]


def test_min_tokens_lets_an_early_end_pass() -> None:
    stepper = stepper_of()
    stepper.add(1, GenerationRequest((7, 8), 9, end_ids=(8,), sampling=SamplingConfig(min_tokens=2)))
    steps = [list(stepper.step()) for _ in range(4)]
    assert steps == [
        [StepOutput(1, (7,))],
        [StepOutput(1, (8,))],
        [StepOutput(1, (7,))],
        [StepOutput(1, (), FinishReason.STOP)],
    ]


def test_delays_are_what_was_asked_for() -> None:
    stepper = stepper_of(step_seconds="0.01,0.02", prefill_seconds_per_token="0.005")
    stepper.add(1, GenerationRequest((7,) * 10, max_tokens=2))
    started = time.monotonic()
    list(stepper.step())
    first = time.monotonic()
    list(stepper.step())
    assert first - started >= 0.06
    assert time.monotonic() - first >= 0.02


def test_beams_come_together_when_the_last_has_ended() -> None:
    stepper = stepper_of()
    request = GenerationRequest((7, 8, 9), 9, end_ids=(9,), sampling=SamplingConfig(beam_width=2), log_probs=True)
    stepper.add(1, request)
    assert list(stepper.step()) == [StepOutput(1, ())]
    assert list(stepper.step()) == []
    (last,) = stepper.step()
    assert last == StepOutput(1, (), FinishReason.STOP, beams=expected_beams(request))
    assert last.beams == (
        Beam((7, 8), (LOG_PROB, LOG_PROB), 2 * LOG_PROB),
        Beam((8,), (2 * LOG_PROB,), 2 * LOG_PROB),
    )
    assert list(stepper.step()) == []


@pytest.mark.parametrize("what", ["leak_bytes_per_request", "leak_bytes_per_step"])
def test_a_leak_is_real(what: str) -> None:
    """The memory is resident, and stays. A separate process, where no freed memory waits to be used again."""
    program = textwrap.dedent(f"""
        import psutil
        from inflight.runtime.messages import GenerationRequest
        from tests.runtime.engine.test_fake import stepper_of

        stepper = stepper_of({what}=str(4 * 2**20))
        before = psutil.Process().memory_info().rss
        for handle in range(10):
            stepper.add(handle, GenerationRequest((7,), max_tokens=1))
            list(stepper.step())
        print(psutil.Process().memory_info().rss - before)
    """)
    grown = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert grown > 20 * 2**20


def test_an_adapter_is_found_by_name() -> None:
    assert isinstance(load_model_runner(EngineOptions("fake", "", kv_cache_tokens=64)), FakeModelRunner)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with raises(ValueError, naming=("vllm", "openvino")):
        load_model_runner(EngineOptions("vllm", "", kv_cache_tokens=64))


@pytest.mark.parametrize("name", BACKENDS)
def test_the_runtime_takes_the_one_engine_in_use_and_nothing_else_heavy(name: str) -> None:
    """The process of the engine starts in a moment, and NVIDIA's container has neither OpenVINO nor torch."""
    if name == "openvino":
        pytest.importorskip("openvino")
    program = (
        "import importlib, sys\n"
        "import inflight.runtime.engine.supervisor, inflight.runtime.engine.worker, inflight.runtime.engine.interface\n"
        f"importlib.import_module({BACKENDS[name].split(':')[0]!r})\n"
        "print(*sorted({'torch', 'transformers', 'openvino', 'click', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    taken = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert taken == (["openvino"] if name == "openvino" else [])
