"""`inflight serve` with several models: what is refused before anything is begun."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.commands.options.numbers import duration
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.encoders import TinyEncoder
from tests.fixtures.engines import TinyEngine

PORTS = ["--gateway", "--port", "0", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


@pytest.fixture
def serve(runner_of: Callable[[str], CommandRunner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandRunner:
    monkeypatch.setenv("INFLIGHT_RUN_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return runner_of("serve")


@pytest.mark.parametrize(
    ("options", "code", "naming"),
    [
        (["--memory", "400MiB"], 1, "tiny-llama"),
        (["--memory", "1200MiB", "--pin", "tiny-llama", "--kv-cache-tokens", "900000"], 1, "pinned"),
        (["--pin", "another"], 1, "another"),
        (["--lora", "adapter"], 1, "--lora"),
        (["--served-model-name", "tea"], 1, "--served-model-name"),
        (["--no-gateway"], 2, "--no-gateway"),
        (["--idle-unload", "soon"], 2, "soon"),
    ],
)
def test_options_that_several_models_can_not_have(
    serve: CommandRunner, tiny_engine: TinyEngine, tmp_path: Path, options: list[str], code: int, naming: str
) -> None:
    done = serve(str(tiny_engine("llama")), str(tiny_engine("qwen2")), *PORTS, *options)
    last = done.err.splitlines()[-1]
    assert done.code == code
    assert naming in last
    assert code == 2 or last.endswith("[invalid_parameter]")
    assert not (tmp_path / "home").exists()


def test_models_that_can_not_be_served_together(
    serve: CommandRunner, tiny_engine: TinyEngine, tiny_encoder: TinyEncoder, tmp_path: Path
) -> None:
    llama = tiny_engine("llama")
    shutil.copytree(llama, tmp_path / "twin")
    for other, naming in ((tmp_path / "twin", "--name"), (tiny_encoder("embed"), "--embed")):
        done = serve(str(llama), str(other), *PORTS)
        assert done.code == 1
        assert naming in done.err.splitlines()[-1]
        assert done.err.endswith("[invalid_parameter]\n")


def test_the_options_of_several_models_are_not_for_one(serve: CommandRunner, tiny_engine: TinyEngine) -> None:
    assert serve(str(tiny_engine("llama")), "--pin", "tiny-llama").code == 2


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("2h", 7200)])
def test_a_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds
