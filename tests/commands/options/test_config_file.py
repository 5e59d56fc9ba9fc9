"""`serve --config`: arguments and options from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from inflight.commands.serve import command


def parsed(file: Path, *args: str) -> dict[str, Any]:
    return command.make_context("serve", [*args, "--config", str(file)]).params


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: engine\nhttp-port: 0\nmax_queue_size: 12\nset: {a: 1, b: two}\nlora: x.safetensors\ngateway: false\n"
        "quiet: true\nprecision: auto\nrequest-log: /var/log/requests.jsonl\nkey-file: keys.json\nstart-timeout: 1.5\n"
    )
    return path


def test_a_file_says_what_the_command_line_could(file: Path) -> None:
    here = file.parent
    arguments = (
        *("--http-port", "0", "--max-queue-size", "12", "--set", "a=1", "--set", "b=two"),
        *("--lora", f"{here}/x.safetensors", "--no-gateway", "--quiet", "--precision", "auto"),
        *("--request-log", "/var/log/requests.jsonl", "--key-file", f"{here}/keys.json", "--start-timeout", "1.5"),
    )
    assert parsed(file) == command.make_context("serve", [f"{here}/engine", *arguments]).params


def test_command_line_and_environment_have_priority(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = parsed(file, "other", "--http-port", "1", "--gateway")
    assert (found["model"], found["http_port"], found["gateway"]) == ("other", 1, True)
    monkeypatch.setenv("INFLIGHT_SERVE_MAX_QUEUE_SIZE", "3")
    context = command.make_context("serve", ["--config", str(file)], auto_envvar_prefix="INFLIGHT_SERVE")
    assert context.params["max_queue_size"] == 3
    assert context.params["model"] == str(file.parent / "engine")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"max-queue-sise: 1\n", "max-queue-size"),
        (b"config: other.yaml\n", "config"),
        (b"http-port: 1\nhttp_port: 2\n", "http_port"),
        (b"http-port: 1\nhttp-port: 2\n", "http-port"),
        (b"http-port: [1]\n", "http-port"),
        (b"http-port:\n", "http-port"),
        (b"http-port: true\n", "http-port"),
        (b"quiet: 1\n", "quiet"),
        (b"http-port: 99999999\n", "--http-port"),
        (b"- model\n", "NAME: VALUE"),
        (b"a: {b: [\n", "NAME: VALUE"),
        (b"\xff\xfe\x00", "NAME: VALUE"),
        (b"a: &a [*a]\n", "NAME: VALUE"),
        (b"a: !!python/object/apply:os.system [exit]\n", "NAME: VALUE"),
        (b"x" * (2 << 20), "NAME: VALUE"),
        (b"", "NAME: VALUE"),
        (None, "check the path"),
    ],
)
def test_what_a_file_may_not_say_is_one_sentence(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "serve.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(click.UsageError) as refused:
        parsed(path, "engine")
    assert named in refused.value.format_message()
    assert "\n" not in refused.value.format_message()
