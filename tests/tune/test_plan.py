from __future__ import annotations

import shlex

import pytest

from inflight.cli import cli
from inflight.tune.plan import TunePlan
from inflight.tune.settings import EngineBuild, Grid, Settings
from loadtests.plan import LoadPlan


@pytest.mark.parametrize(
    ("target", "build"),
    [
        ("openvino", EngineBuild("int8", "u8")),
        ("tensorrt-llm", EngineBuild("fp8", "fp8")),
        ("tensorrt-llm", EngineBuild("bf16")),
        ("llmapi", EngineBuild("fp8")),
    ],
)
def test_the_commands_of_a_candidate_are_commands_with_its_settings(target: str, build: EngineBuild) -> None:
    settings = Settings(build, 512, 16)
    plan = TunePlan("./my checkpoint", target, False, Grid([build], [512], [16]), LoadPlan(), 16, 6.0, 4)
    parsed = {}
    for line in plan.commands(settings, "out"):
        program, name, *arguments = shlex.split(line)
        assert program == "inflight"
        with cli.make_context("inflight", [name, *arguments]) as group:
            command = cli.get_command(group, name)
            assert command is not None
            parsed[name] = command.make_context(name, arguments, parent=group).params
    assert parsed["build"]["checkpoint"] == "./my checkpoint"
    assert parsed["build"]["precision"] == build.precision
    assert parsed["build"]["kv_precision"] == (build.kv_precision or None)
    assert (str(parsed["build"]["out"]),) == parsed["serve"]["models"]
    limits = (parsed["build"]["max_num_tokens"], parsed["build"]["max_batch_size"])
    served = (parsed["serve"]["max_num_tokens"], parsed["serve"]["max_num_sequences"])
    assert (limits if target == "tensorrt-llm" else served) == (512, 16)


def test_the_grid_has_each_combination_once() -> None:
    grid = Grid([EngineBuild("int8"), EngineBuild("bf16")], [96, 256], [32], [0, 1], [1, 4])
    engines = grid.engines()
    assert len(set(engines)) == len(engines) == 8
    assert len(set(grid.settings())) == 16
