"""Benchmarks are commands, which CI does not run."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import click
import pytest

import benchmarks

ROOT = Path(benchmarks.__file__).parent
COMMANDS = [path for path in sorted(ROOT.rglob("*.py")) if "@click.command" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_benchmark_takes_the_values_of_its_options(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    for command in vars(module).values():
        if isinstance(command, click.Command):
            assert command.callback is not None
            given = {str(param.name): None for param in command.params if param.expose_value}
            inspect.signature(command.callback).bind(**given)


def test_there_are_such_commands() -> None:
    assert len(COMMANDS) > 20
