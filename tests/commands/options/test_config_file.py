"""Options of `inflight serve` from a file: all of them, their order of precedence, and files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from inflight.commands.serve import command
from inflight.lazy_group import name_source


def parsed(config: Path | None, *arguments: str) -> dict[str, Any]:
    """Return the values with which the command would run."""
    words = [*arguments] if config is None else ["--config", str(config), *arguments]
    return dict(command.make_context("serve", words, auto_envvar_prefix="INFLIGHT_SERVE").params)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "serve.yaml"


def test_each_option_can_be_set_in_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file sets for each option is what the same words set on the command line."""
    monkeypatch.delenv("INFLIGHT_SERVE_GATEWAY", raising=False)  # the tests' own default, which overrides a file
    examples: dict[str, str] = {
        "--memory": "7g",
        "--grpc-tls-ca": "/a.pem",
        "--lora": "/b",
        "--set": "a=1",
        "--cors-origin": "http://a",
    }
    examples |= dict.fromkeys(("--embed", "--rerank", "--classify", "--transcribe", "--text2text"), "/c")
    lines, words = ["engine: /my-engine"], ["/my-engine"]
    for option in command.params:
        if not isinstance(option, click.Option) or option.name in ("config", "help"):
            continue
        name = option.opts[0]
        if option.is_flag:
            lines.append(f"{name[2:]}: true")
            words.append(name)
            continue
        kind = option.type
        value = kind.choices[0] if isinstance(kind, click.Choice) else examples.get(name, "7")
        value = f"/{value}" if isinstance(kind, click.Path) else value
        lines.append(f"{name[2:]}: [{value}, {value}]" if option.multiple else f"{name[2:]}: {value}")
        words += [name, str(value)] * (2 if option.multiple else 1)
    config.write_text("\n".join(lines))
    assert parsed(config) == (expected := parsed(None, *words))
    assert len(lines) == len(expected)


def test_the_command_line_overrides_the_environment_and_that_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("engine: [a]\nport: 1\nhttp-port: 1\ngrpc-port: 1\ngateway: false\nlora: [a]\n")
    monkeypatch.setenv("INFLIGHT_SERVE_HTTP_PORT", "2")
    monkeypatch.setenv("INFLIGHT_SERVE_GRPC_PORT", "2")
    found = parsed(config, "b", "--grpc-port", "3", "--gateway", "--lora", "b")
    assert [found[name] for name in ("models", "port", "http_port", "grpc_port")] == [("b",), 1, 2, 3]
    assert found["gateway"] is True
    assert found["adapters"] == (Path("b"),)


def test_the_environment_can_name_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("port: 1\n")
    monkeypatch.setenv("INFLIGHT_SERVE_CONFIG", str(config))
    assert parsed(None, "a")["port"] == 1


def test_paths_are_relative_to_the_file(config: Path, tmp_path: Path) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for written, meant in [
        ("my-engine", str(tmp_path / "my-engine")),
        ("owner/name", str(tmp_path / "owner/name")),
        ("owner/of-the-hub", "owner/of-the-hub"),
        ("s3://models/a", "s3://models/a"),
        ("/engine", "/engine"),
    ]:
        config.write_text(f"engine: {written}\nlora: [a, /b]\nrequest-log: c\n")
        found = parsed(config)
        assert found["models"] == (meant,)
        assert found["adapters"] == (tmp_path / "a", Path("/b"))
        assert found["request_log"] == tmp_path / "c"


def test_values_are_as_on_the_command_line(config: Path) -> None:
    """YAML 1.1 would make other values of all of these."""
    config.write_text("engine: /a\nserved-model-name: 2024-01-01\nrevision: 0123\ntool-call-parser: none\nset: n=no\n")
    found = parsed(config)
    assert (found["served_model_name"], found["revision"]) == ("2024-01-01", "0123")
    assert (found["tool_call_parser"], found["settings"]) == ("none", ("n=no",))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"max_queue_size: 3", "max-queue-size"),
        (b"config: a.yaml", "--help"),
        (b"model: a", "engine"),
        (b"<<: {port: 1}", "<<"),
        (b"port: 1\nport: 2", "line 2"),
        (b"gateway: true\nno-gateway: true", "line 2"),
        (b"port: [1]", "port: VALUE"),
        (b"port: {a: 1}", "port: VALUE"),
        (b"lora: [[a]]", "lora: VALUE"),
        (b"port:", "no value"),
        (b"port: ~", "no value"),
        (b"quiet: 3", "true or false"),
        (b"? [a]\n: 3", "line 1"),
        (b'engine: "a\\0b"', "line 1"),
        (b'engine: "a\\ud800b"', "line 1"),
        (b"- port", "NAME: VALUE"),
        (b"port: 1\n---\nport: 2", "YAML"),
        (b"port: [", "YAML"),
        (b"port: *port", "YAML"),
        (b"a: " + b"[" * 10_000, "nested"),
        (b"#" * (2 << 20), "1 MiB"),
        (b"port: \xff", "UTF-8"),
    ],
)
def test_a_broken_file_is_one_sentence(config: Path, content: bytes, hint: str) -> None:
    config.write_bytes(content)
    with pytest.raises(click.BadParameter) as caught:
        parsed(config, "a")
    assert hint in caught.value.message
    assert str(config) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_can_not_be_read_is_wrong_usage(config: Path, tmp_path: Path) -> None:
    for path in (config, tmp_path, Path("/dev/zero")):
        with pytest.raises(click.BadParameter):
            parsed(path, "a")


def test_a_wrong_value_is_said_to_be_in_the_file(config: Path) -> None:
    config.write_text("port: 99999\n")
    with pytest.raises(click.BadParameter) as caught:
        parsed(config, "a")
    name_source(caught.value)
    assert caught.value.param_hint == f"port in {config}"


def test_an_empty_file_sets_nothing(config: Path) -> None:
    config.write_text("# nothing yet\n")
    assert parsed(config, "a") == parsed(None, "a")
