"""The arithmetic of predictions, on a machine whose speed is given, and the measurement of this one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from build_engines.errors import BuildError
from build_engines.plan.formats import OPENVINO_KV, OPENVINO_WEIGHTS
from build_engines.plan.machine_speed import ROWS, MachineSpeed, MatrixSpeed, measure_machine
from build_engines.plan.parameters import count_parameters
from build_engines.plan.shape import read_shape
from build_engines.plan.speed import SpeedModel, Step, Workload, scheduled_steps
from tests.build_engines.plan.published import SHAPES

LARGE = (1e-10, 1e-10, 2e-10, 4e-10, 6e-10)
SPEED = MatrixSpeed(LARGE, tuple(seconds / 2 for seconds in LARGE))


def model(name: str, precision: str = "int8", kv: str = "u8", *, operation: float = 0.0) -> SpeedModel:
    shape = read_shape(SHAPES[name], name)
    machine = MachineSpeed(operation, 32 << 20, {precision: SPEED})
    return SpeedModel(shape, count_parameters(shape), OPENVINO_WEIGHTS[precision], OPENVINO_KV[kv], machine)


@pytest.mark.parametrize(("rows", "seconds"), [(1, 1e-10), (4, 1e-10), (48, 3e-10), (96, 6e-10), (192, 12e-10)])
def test_between_measured_numbers_of_tokens_it_interpolates(rows: int, seconds: float) -> None:
    assert SPEED.seconds(1, rows, cached=False) == pytest.approx(seconds)
    assert SPEED.seconds(1, rows, cached=True) == pytest.approx(seconds / 2)


def test_one_token_takes_the_time_of_reading_the_weights() -> None:
    speed = model("qwen2.5-0.5b")
    weights = speed.parameters.linear + speed.parameters.embedding
    assert speed.step_seconds(Step(1, 1), 0) == pytest.approx(weights * 1e-10, rel=0.02)


def test_a_model_that_fits_into_the_caches_is_faster() -> None:
    small = model("qwen2.5-0.5b")
    large = replace(small, machine=replace(small.machine, cache_bytes=1 << 40))
    assert large.step_seconds(Step(1, 1), 0) == pytest.approx(small.step_seconds(Step(1, 1), 0) / 2, rel=0.05)


def test_longer_sequences_and_coarser_caches_are_slower() -> None:
    finest = model("llama-3.1-8b", "bf16", "u8").step_seconds(Step(8, 8), 1000)
    assert model("llama-3.1-8b", "bf16", "u8").step_seconds(Step(8, 8), 8000) > finest
    assert model("llama-3.1-8b", "bf16", "f32").step_seconds(Step(8, 8), 1000) > finest


def test_a_token_reads_only_its_experts() -> None:
    speed = model("mixtral-8x7b")
    one_token = speed.step_seconds(Step(1, 1), 0)
    assert one_token < 0.5 * speed.parameters.total * 1e-10
    # With many tokens all experts are read, each by a part of them.
    assert speed.step_seconds(Step(32, 32), 0) > 2 * one_token


def test_prompts_share_the_steps_with_answers() -> None:
    steps = list(scheduled_steps(Workload(64, 64, 64), 96))
    assert max(step.tokens for step in steps) == 96
    # Each output token brings one token of a prompt.
    assert sum(step.sampled for step in steps) / sum(step.tokens for step in steps) == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize(
    ("sequences", "prompt", "answer"), [(1, 1, 1), (1, 500, 1), (3, 7, 5), (200, 64, 64), (64, 1, 8)]
)
def test_a_step_never_exceeds_its_tokens_and_every_answer_ends(sequences: int, prompt: int, answer: int) -> None:
    steps = list(scheduled_steps(Workload(sequences, prompt, answer), 96))
    assert all(0 < step.tokens <= 96 and 0 <= step.sampled <= min(sequences, step.tokens) for step in steps)
    assert sum(step.sampled for step in steps) >= answer


def test_longer_prompts_lower_the_output() -> None:
    speed = model("qwen2.5-0.5b")
    assert speed.tokens_per_second(Workload(64, 512, 64)) < speed.tokens_per_second(Workload(64, 64, 64)) / 2
    assert speed.tokens_per_second(Workload(64)) > speed.tokens_per_second(Workload(1))


@pytest.mark.alone
def test_this_machine_is_measured() -> None:
    machine = measure_machine(["int8", "fp32"])
    assert set(machine.matrices) == {"int8", "fp32"}
    assert 0 < machine.operation < 0.01
    assert machine.cache_bytes > 0
    for name, speed in machine.matrices.items():
        assert len(speed.large) == len(speed.small) == len(ROWS)
        assert min(*speed.large, *speed.small) > 0
        # 96 tokens use each weight that was read 96 times, so they take less than 96 times as long.
        assert speed.large[-1] < 96 * speed.large[0]
        assert machine.operations_per_second(name) > 2 * machine.bandwidth(name) / OPENVINO_WEIGHTS[name].linear
    assert machine.matrices["int8"].large[0] < machine.matrices["fp32"].large[0]


def test_without_openvino_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError) as refused:
        measure_machine(["int8"])
    assert refused.value.code == "package_missing"
