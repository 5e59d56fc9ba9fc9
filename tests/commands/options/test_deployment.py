from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from inflight.commands.options.deployment import deployment_options, deployment_options_from
from inflight.commands.serve import command as serve
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.model_names import option_name
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.deploy.repository.tensorrt_llm.backend import read_parameters
from tests.fixtures.errors import raises
from tests.fixtures.manifests import manifest


@click.command()
@deployment_options("serve")
def command(**asked: object) -> None:
    for name, value in sorted(deployment_options_from(asked).settings.items()):
        click.echo(f"{name}: {value}")


def run_options(*arguments: str) -> DeploymentOptions:
    return deployment_options_from(command.make_context("serve", list(arguments)).params)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "parameters.yaml"
    path.write_text("max_beam_width: 2\ngpu_device_ids: [[0, 1], [2, 3]]\n")
    return path


def test_parameters_come_by_name_and_from_a_file_and_the_command_line_wins(file: Path) -> None:
    result = run("--parameters", str(file), "--set", "max_beam_width=4", "--set", "lora_prefetch_dir=a=b")
    assert result.output.splitlines() == [
        "gpu_device_ids: [[0, 1], [2, 3]]",
        "lora_prefetch_dir: a=b",
        "max_beam_width: 4",
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--set", "max_beam_width"], "'max_beam_width' is not of the form NAME=VALUE."),
        (["--set", "=2"], "'=2' is not of the form NAME=VALUE."),
        (["--set", "a=1", "--set", "a=2"], "a is given twice; give it once."),
    ],
)
def test_what_is_no_name_with_a_value_is_wrong_usage(given: list[str], sentence: str) -> None:
    result = run(*given)
    assert (result.exit_code, sentence in result.output) == (2, True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "can't be read (No such file or directory); check the path."),
        ("a: [1", "can't be read (while parsing a flow sequence"),
        ("- a\n- b\n", "holds no names with values; write lines of NAME: VALUE."),
        ("", "holds no names with values"),
        ("1: 2\n", "1 is not a text; write the name in quotes"),
        ("max_beam_width:\n", "The parameter max_beam_width has no value in"),
        ("max_beam_width: 1\nmax_beam_width: 2\n", "max_beam_width is given twice"),
    ],
)
def test_a_file_that_holds_no_parameters_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    path = tmp_path / "parameters.yaml"
    if content is not None:
        path.write_text(content)
    error = run("--parameters", str(path)).exception
    assert isinstance(error, DeployError)
    assert sentence in str(error)
    assert error.code == "invalid_parameter"


def test_messages_name_the_flags_that_people_type() -> None:
    known = {text for option in serve.params for text in (*option.opts, *option.secondary_opts)}
    for one in (*fields(DeploymentOptions), *fields(EncoderOptions)):
        if one.name not in ("chunked_context", "parameters", "encoders"):  # for programs alone
            assert option_name(one.name).split(" ")[0] in known, one.name
    for given in (["--lora", "a"], ["--draft-engine", "a"]):
        options = run_options(*given)
        with raises(DeployError, "invalid_parameter", naming=given[0]):
            read_parameters(options, Path("engine"), manifest().model_copy(update={"target": "tensorrt-llm"}))
