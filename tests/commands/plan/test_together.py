from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.commands.plan.together import largest_sets
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.engines import TinyEngine


@pytest.mark.parametrize(
    ("memory", "sets"),
    [
        (6, [("a", "b", "c")]),
        (4, [("a", "b"), ("a", "c")]),
        (3, [("a", "b"), ("c",)]),
        (1, [("a",)]),
        (0, []),
    ],
)
def test_the_largest_sets_that_fit(memory: int, sets: list[tuple[str, ...]]) -> None:
    assert largest_sets({"a": 1, "b": 2, "c": 3}, memory) == sets


def test_engines_and_checkpoints_are_planned_together(
    runner_of: Callable[[str], CommandRunner], tiny_engine: TinyEngine, tiny_checkpoint: Callable[[str], Path]
) -> None:
    plan = runner_of("plan")
    models = [str(tiny_engine("llama")), str(tiny_checkpoint("qwen2"))]
    found = json.loads(plan(*models, "--memory", "2GiB", "--json").out)
    assert [each["model"] for each in found["models"]] == models
    assert found["fit_together"] == [models]
    assert all(each["total_bytes"] == each["fixed_bytes"] + each["kv_cache_bytes"] for each in found["models"])
    assert plan(*models, "--memory", "100MiB").code == 1
    assert "at a time" in plan(*models, "--memory", "500MiB").out
    assert plan(*models, "--gpu", "h200").code == 2
