"""The front door: quick help, one sentence for a user's mistake, and the exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from inflight_client import InflightError

from inflight import __version__, cli
from inflight.lazy_group import LazyGroup
from inflight.option_hints import OPTION_HINTS


def test_help_imports_no_command() -> None:
    program = (
        "import sys\n"
        "from inflight import cli\n"
        "try:\n"
        "    cli.main(['--help'])\n"
        "finally:\n"
        "    taken = [name for name in sys.modules if name.startswith('inflight.commands.')]\n"
        "    heavy = {'torch', 'openvino', 'grpc', 'pydantic', 'inflight_client'} & set(sys.modules)\n"
        "    print(taken, heavy, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[] set()\n"
    for name in cli.COMMANDS:
        assert f"  {name} " in done.stdout


def options_of(command: click.Command, parent: click.Context) -> Iterator[tuple[click.Context, click.Option]]:
    context = click.Context(command, parent=parent, info_name=command.name)
    for option in command.params:
        if isinstance(option, click.Option):
            yield context, option
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            inner.name = name
            yield from options_of(inner, context)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_has_the_variable_of_its_name_and_the_help_shows_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    front = click.Context(cli.cli, info_name="inflight", auto_envvar_prefix="INFLIGHT")
    command = cli.cli.get_command(front, name)
    assert command is not None
    assert command.help, "a command says what it does"
    command.name = name
    for context, option in options_of(command, front):
        place = context.command_path.removeprefix("inflight").split()
        flag = next(flag for flag in option.opts if flag.startswith("--"))
        variable = "_".join(["INFLIGHT", *place, flag.removeprefix("--")]).replace("-", "_").upper()
        monkeypatch.setenv(variable, "given")
        assert option.resolve_envvar_value(context) == "given", f"{flag} doesn't hear {variable}"
        assert variable in context.get_help().replace("\n", "").replace(" ", "")


def float_options() -> Iterator[tuple[str, str]]:
    """Each command, with an argument where it takes one, and each of its options that is a number with a fraction."""
    front = click.Context(cli.cli, info_name="inflight")
    for name in cli.COMMANDS:
        command = cli.cli.get_command(front, name)
        assert command is not None
        command.name = name
        for context, option in options_of(command, front):
            if isinstance(option.type, click.types.FloatParamType) and context.parent is front:
                argued = any(isinstance(param, click.Argument) for param in context.command.params)
                yield context.command_path.removeprefix("inflight ") + " x" * argued, option.opts[0]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("command", "flag"), list(float_options()))
def test_no_option_takes_what_is_no_number(
    capsys: pytest.CaptureFixture[str], command: str, flag: str, value: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main([*command.split(), f"{flag}={value}"])
    assert raised.value.code == 2
    sentence = capsys.readouterr().err.partition("\nError: ")[2]
    assert re.search(rf"(?<!\w){value} is no|is {value};", sentence), sentence
    assert sentence.count("\n") == 1


def exit_code_of(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Run a command that fails with `error`."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: failing)
    with pytest.raises(SystemExit) as raised:
        cli.main(["generate"])
    assert isinstance(raised.value.code, int)
    return raised.value.code


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InflightError("no server answers at 1:1", "server_unreachable"), 1, "1:1 [server_unreachable]\n"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 1, "the package torch is missing"),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_what_stops_a_command_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    assert exit_code_of(monkeypatch, error) == code
    sentence = capsys.readouterr().err
    assert words in sentence
    assert sentence.strip().count("\n") == 0


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code_of(monkeypatch, ZeroDivisionError())
    with pytest.raises(ModuleNotFoundError):
        exit_code_of(monkeypatch, ModuleNotFoundError("a defect", name="inflight.lost"))
    with pytest.raises(OSError, match="No space left"):  # not of what was printed
        exit_code_of(monkeypatch, OSError(28, "No space left", "/tmp/file"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["hlep"], "Use `inflight --help`"),
        (["batch", "hlep"], "Use `inflight batch --help`"),
        (["batch", "run", "x.jsonl", "--out", "gone/x.csv"], "'--out'"),
        (["server"], "Did you mean 'serve'?"),
        (["bench"], "Use `inflight load run`"),
        (["benchmark"], "Use `inflight load run`"),
        (["run", "Qwen/Qwen3-8B"], "`inflight chat`"),
        (["run", "Qwen/Qwen3-8B"], "`inflight serve`"),
        (["ps"], "Use `inflight status`"),
        (["stop"], "SIGTERM"),
        (["convert"], "Use `inflight build`"),
        (["ls"], "Use `inflight list`"),
        (["pul"], "Did you mean 'pull'?"),
        (["pull"], "Missing argument 'MODEL'"),
        (["version"], "Use `inflight --version`"),
        (["batch", "satus"], "Did you mean 'status'?"),
        (["generate"], "Missing argument 'PROMPT'"),
        (["generate", "x", "--top-k", "many"], "'many' is not a valid integer"),
        (["--nothing"], "No such option"),
        (["serve", "x", "--max-num-sequence", "4"], "'--max-num-sequences'?"),
        (["key", "add", "x", "--model", "y"], "Did you mean '--models'?"),
        (["load", "run", "--model-id", "y"], "Did you mean '--model'?"),
        (["generate", "x", "--temp", "1"], "Did you mean '--temperature'?"),
        (["generate", "x", "--dtype", "y"], "Use --precision of `inflight serve`."),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["presence-penalty", "frequency-penalty", "repetition-penalty"])
def test_a_penalty_is_the_same_in_a_batch_as_in_a_request(capsys: pytest.CaptureFixture[str], option: str) -> None:
    said = set()
    for command in (["generate"], ["batch", "run"]):
        cli.main([*command, "--help"])
        found = capsys.readouterr().out.partition(f"--{option} FLOAT")[2].partition("[env")[0]
        said.add(" ".join(found.split()))
    assert len(said) == 1
    assert said != {""}


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (["serve", "x"], "INFLIGHT_SERVE_HTTP_PORT"),
        (["batch", "run", "x", "--out", "y"], "INFLIGHT_BATCH_RUN_WINDOW"),
        (["checkpoint", "synthetic", "--like", "gpt2", "--out", "x"], "INFLIGHT_CHECKPOINT_SYNTHETIC_SEED"),
    ],
)
def test_variables_of_the_environment_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], variable: str
) -> None:
    wrong = variable[:-2] + variable[-1] + variable[-2]
    monkeypatch.setenv(variable, "abc")
    monkeypatch.setenv(wrong, "1")
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == 2
    said = capsys.readouterr().err
    assert re.search(rf"Warning: .*\b{wrong} .* {variable}\?", said)
    assert re.search(rf"Error: .*\b{variable}: 'abc' is", said)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    cli.main([flag])
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("option", OPTION_HINTS)
def test_an_option_of_another_server_is_answered_with_ours(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["serve", "x", option, "1"])
    said = " ".join(capsys.readouterr().err.split())
    assert raised.value.code == 2
    assert f"Use {OPTION_HINTS[option]}." in said
    named = re.findall(r"--[a-z-]+", OPTION_HINTS[option])
    commands = [cli.cli.get_command(click.Context(cli.cli), name) for name in ("serve", "build", "gateway")]
    known = {name for command in commands if command for each in command.params for name in each.opts}
    assert set(named) <= known | {"--no-kv-cache-reuse"}


def test_an_option_like_no_other_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "x", "--swap-space", "1"])
    assert "Did you mean" not in capsys.readouterr().err
