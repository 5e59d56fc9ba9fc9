"""Wrong options of the load commands, and their help: no server is asked for anything here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.command_runner import CommandRunner

RATE = "p99 ttft <= 500ms"
WRONG = {
    "SLO": (["run", "--slo", "p99 speed <= 1s"], "the SLO 'p99 speed <= 1s' can't be read"),
    "profile": (["run", "--users", "many"], "the profile 'many' can't be used"),
    "two loops": (["run", "--users", "2", "--rate", "3"], "--users is a closed loop and --rate an open one"),
    "distribution": (["run", "--input-tokens", "about:5"], "input_tokens 'about:5' can't be used"),
    "no such prompts": (["run", "--prompts", "nowhere.jsonl"], "nowhere.jsonl can't be read"),
    "no such sample": (["run", "--trace", "sample:nothing"], "there is no sample 'nothing'; there are azure"),
    "no such tokenizer": (["run", "--tokenizer", "nowhere"], "the directory has no tokenizer.json"),
    "no such plan": (["run", "--plan", "nowhere.json"], "'nowhere.json' does not exist"),
    "burstiness": (["run", "--rate", "2", "--arrivals", "gamma", "--burstiness", "0.001"], "a burstiness of 0.001"),
    "choice": (["run", "--arrivals", "weird"], "'weird' is not one of 'constant', 'poisson', 'gamma'"),
    "negative": (["run", "--timeout", "-1"], "--timeout is -1.0"),
    "not finite": (["run", "--seconds", "inf"], "--seconds is inf: it must be a finite number"),
    "share": (["run", "--cancel-fraction", "2"], "--cancel-fraction is 2.0"),
    "no sessions": (["run", "--sessions", "0"], "--sessions is 0"),
    "no workers": (["run", "--workers", "0"], "0 is not in the range"),
    "bind": (["run", "--workers", "2", "--bind", "here"], "'--bind': it must be HOST:PORT"),
    "metrics": (["run", "--metrics-url", "localhost:8002"], "'--metrics-url': it must be an http or https URL"),
    "no option": (["run", "--profile", "3"], "No such option '--profile'"),
    "sweep without an SLO": (["sweep"], "--slo 'p99 ttft <= 500ms'"),
    "sweep of users": (["sweep", "--users", "3", "--slo", RATE], "No such option '--users'"),
    "start": (["sweep", "--start", "0", "--slo", RATE], "0.0 is not in the range"),
    "tolerance": (["sweep", "--tolerance", "-1", "--slo", RATE], "-1.0 is not in the range"),
    "no run": (["report", "nowhere"], "'nowhere' does not exist"),
    "no master": (["worker", "nowhere"], "the master's address must be HOST:PORT"),
    "port": (["worker", "10.0.0.1:99999"], "the master's address must be HOST:PORT"),
    "no command": (["walk"], "No such command 'walk'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_one_sentence_and_leaves_nothing_behind(
    name: str, load: CommandRunner, tmp_path: Path
) -> None:
    arguments, words = WRONG[name]
    done = load(*arguments)
    assert done.code == 2
    *usage, sentence = done.err.strip().splitlines()
    assert sentence.startswith("Error: ")
    assert words in sentence
    assert all(line.startswith(("Usage:", "Try ")) or not line for line in usage)
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "run", "sweep", "report", "worker"])
def test_help_has_examples_and_names_variables(name: str, load: CommandRunner) -> None:
    done = load(*([name] if name else []), "--help")
    assert (done.code, done.err) == (0, "")
    assert f"\n    inflight load {name}".rstrip() in done.out
    if name in ("run", "sweep"):
        assert f"INFLIGHT_LOAD_{name.upper()}_OUTPUT_TOKENS" in "".join(done.out.split())
    if name == "sweep":
        assert "default: measured by a short run; 16 with --by users]" in " ".join(done.out.split())


def test_a_plan_that_is_none_is_told_by_its_file(load: CommandRunner, tmp_path: Path) -> None:
    for text, words in (
        ('{"server": 5}', "--server is 5"),
        ("{", "the plan is invalid: Invalid JSON"),
        ('{"no": 1}', "no is 1"),
    ):
        (tmp_path / "plan.json").write_text(text)
        done = load("run", "--plan", "plan.json")
        assert done.code == 2
        assert f"Error: plan.json is not a plan: {words}" in done.err
        done = load("report", str(tmp_path))
        assert (done.code, done.err.count("\n")) == (1, 1)
        assert done.err.endswith("[run_damaged]\n")


@pytest.mark.parametrize("command", ["run", "sweep --slo error_rate<=1%"])
def test_nobody_at_the_address_is_told_and_leaves_nothing_behind(
    load: CommandRunner, tmp_path: Path, command: str
) -> None:
    done = load(*command.split(), "--server", "127.0.0.1:1")
    assert done.code == 1
    assert done.err.endswith("no server answers at 127.0.0.1:1; check the address or start one [server_unreachable]\n")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_exists_is_left_as_it_is(load: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    done = load("run", "--out", "mine")
    assert (done.code, done.err) == (1, "Error: mine exists; choose another --out or remove it [output_exists]\n")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["file"]


def test_a_directory_without_a_run_has_no_report(load: CommandRunner, tmp_path: Path) -> None:
    done = load("report", str(tmp_path))
    assert done.code == 1
    assert "is not the directory of a run: it has no plan.json [run_not_found]" in done.err
