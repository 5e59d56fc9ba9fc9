"""The reports of `inflight plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from inflight.cli import cli
from tests.build_engines.plan.published import SHAPES

GPU = ("--gpu", "h100")


def plan(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["plan", *map(str, arguments)])


def report(*arguments: object) -> dict[str, Any]:
    done = plan(*arguments, "--json")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert done.exit_code == (0 if found["recommended"] else 1)
    return found


def write(directory: Path, model: str, **changes: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(SHAPES[model] | changes), encoding="utf-8")
    return directory
