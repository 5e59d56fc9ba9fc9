"""`inflight key`: the key alone on standard output, lists without secrets, and mistakes in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from inflight.gateway.key_file import OPTIONS, key_digest, parse_time, read_key_file
from inflight.gateway.key_ring import KeyRing
from tests.gateway.key_files import keys_json, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "keys.json"


@pytest.fixture
def run(runner_of: Any, path: Path) -> Any:  # a function of a command and its arguments
    return lambda command, *arguments: runner_of("key")(command, "--key-file", str(path), *arguments)


def test_add_prints_the_key_alone(run: Any, path: Path) -> None:
    done = run("add", "shop")
    token = done.out.removesuffix("\n")
    assert (done.code, "\n" in token) == (0, False)
    assert token not in done.err
    assert done.err.count("\n") == 1
    key = KeyRing.load(path).authenticate(token)
    assert key is not None
    assert (key.name, key.tenant, key.models, key.expires) == ("shop", "shop", (), None)


def test_add_takes_a_tenant_models_and_an_expiry(run: Any, path: Path) -> None:
    options = ["--tenant", "research", "--models", "a, b", "--models", "c", "--expires", "2100-01-01"]
    options += ["--requests-per-minute", "60", "--max-concurrent", "4", "--json"]
    options += ["--weight", "3", "--max-priority", "1", "--no-degrade", "--cache"]
    (record,) = run("add", "nightly", *options).objects
    key = KeyRing.load(path).authenticate(record.pop("key"))
    assert key is not None
    assert record == {
        "id": key.id,
        "name": "nightly",
        "tenant": "research",
        "models": ["a", "b", "c"],
        "created": record["created"],
        "expires": "2100-01-01T00:00:00Z",
        "quotas": {"requests_per_minute": 60, "max_concurrent": 4},
        "trusted": False,
        "weight": 3,
        "max_priority": 1,
        "degrade": False,
        "cache": True,
    }


@pytest.mark.parametrize(("period", "hours"), [("12h", 12), ("30d", 720), ("8w", 1344)])
def test_a_period_begins_now(run: Any, period: str, hours: int) -> None:
    before = datetime.now(timezone.utc).replace(microsecond=0)
    (record,) = run("add", "shop", "--expires", period, "--json").objects
    after = datetime.now(timezone.utc)
    assert before <= parse_time(record["expires"]) - timedelta(hours=hours) <= after


@pytest.mark.parametrize(
    "arguments",
    [
        ["shop", "--expires", "soon"],
        ["shop", "--expires", ""],
        ["shop", "--expires", "30"],
        ["shop", "--expires", "0d"],
        ["shop", "--expires", "-1d"],
        ["shop", "--expires", "999999999w"],
        ["shop", "--expires", "2020-01-01"],
        ["shop", "--expires", "0001-01-01T00:00+10:00"],
        ["shop", "--models", ""],
        ["shop", "--models", "a,,b"],
        ["shop", "--tenant", ""],
        ["shop", "--tenant", "Köln"],
        ["Köln"],
        [""],
        ["a\nb"],
        [],
    ],
)
def test_wrong_usage_adds_nothing(run: Any, path: Path, arguments: list[str]) -> None:
    done = run("add", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.partition("\nError: ")[2].count("\n") == 1
    assert not path.exists()


def test_a_name_in_use_is_refused(run: Any) -> None:
    run("add", "shop")
    done = run("add", "shop")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert "[invalid_parameter]" in done.err


def test_list_shows_keys_in_order_without_secrets(run: Any, path: Path) -> None:
    token = run("add", "shop").out.strip()
    run("add", "東京", "--tenant", "tokyo", "--models", "llama,qwen")
    run("revoke", "shop")
    table, lines = run("list").out, run("list", "--json").objects
    assert [(one["name"], one["tenant"], one["models"], one["state"]) for one in lines] == [
        ("shop", "shop", [], "revoked"),
        ("東京", "tokyo", ["llama", "qwen"], "valid"),
    ]
    assert lines[0].keys() - {*OPTIONS} == {"id", "name", "tenant", "models", "created", "expires", "quotas", "state"}
    for one, line in zip(lines, table.splitlines()[1:], strict=True):
        for value in (one["id"], one["name"], one["tenant"], one["created"], one["state"]):
            assert value in line
    for text in (table, json.dumps(lines)):
        assert token not in text
        assert key_digest(token).hex() not in text


def test_list_shows_an_expired_key(run: Any, path: Path) -> None:
    path.parent.mkdir()
    write(path, keys_json({"expires": "2026-01-02T00:00:00Z"}))
    assert [one["state"] for one in run("list", "--json").objects] == ["expired"]


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_list_of_no_keys(run: Any, path: Path, option: list[str]) -> None:
    done = run("list", *option)
    assert (done.code, done.out) == (0, "")
    assert not path.parent.exists()


def test_revoke_takes_an_id_or_a_name(run: Any, path: Path) -> None:
    first = run("add", "shop", "--json").objects[0]
    second = run("add", "ci", "--json").objects[0]
    for wanted in (first["id"], "ci"):
        assert run("revoke", wanted).code == 0
    ring = KeyRing.load(path)
    assert [ring.authenticate(one["key"]) for one in (first, second)] == [None, None]


def test_revoke_of_an_unknown_key_names_the_nearest(run: Any) -> None:
    run("add", "web-shop")
    done = run("revoke", "webshop")
    assert done.code == 1
    assert "did you mean 'web-shop'?" in done.err


@pytest.mark.parametrize("command", [["add", "a"], ["list"], ["revoke", "shop"]])
@pytest.mark.parametrize(("content", "mode", "code"), [("{", 0o600, "keys_invalid"), ("{}", 0o644, "storage_denied")])
def test_an_unusable_file_is_one_sentence(
    run: Any, path: Path, command: list[str], content: str, mode: int, code: str
) -> None:
    path.parent.mkdir()
    write(path, content, mode)
    done = run(*command)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: ")
    assert done.err.endswith(f"[{code}]\n")
    assert done.err.count("\n") == 1


def test_a_key_that_cannot_be_printed_is_revoked(path: Path) -> None:
    program = "import sys; from inflight import cli; cli.main(['key', 'add', 'shop', '--key-file', sys.argv[1]])"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-P", "-c", program, path], stdout=full, stderr=subprocess.DEVNULL)
    assert done.returncode == 1
    file = read_key_file(path)
    assert file is not None
    assert [one.state for one in file.entries] == ["revoked"]


def test_the_path_is_in_the_configuration_folder(
    runner_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert runner_of("key")("add", "shop").code == 0
    assert (tmp_path / "inflight" / "keys.json").is_file()


def test_no_key_is_added_if_standard_output_is_closed(path: Path) -> None:
    program = "import sys; from inflight import cli; cli.main(['key', 'add', 'shop', '--key-file', sys.argv[1]])"
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-P", "-c", program, str(path)]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr
    assert not path.exists()


def test_limit_replaces_the_quotas_of_a_valid_key(run: Any, path: Path) -> None:
    run("add", "shop", "--tokens-per-day", "5")
    assert run("limit", "shop", "--tokens-per-minute", "7").code == 0
    assert run("list", "--json").objects[0]["quotas"] == {"tokens_per_minute": 7}
    run("revoke", "shop")
    assert "invalid_parameter" in run("limit", "shop", "--tokens-per-minute", "7").err
    assert run("add", "other", "--max-concurrent", "0").code == 2


@pytest.mark.parametrize("command", ["add", "limit", "list", "revoke"])
def test_help_has_examples(runner_of: Any, command: str) -> None:
    done = runner_of("key")(command, "--help")
    assert done.code == 0
    assert done.out.count(f"inflight key {command}") > 1
    for option in ("KEY_FILE", *(["JSON"] if command in ("add", "list") else [])):
        assert f"INFLIGHT_KEY_{command.upper()}_{option}" in done.out


def test_no_server_is_imported() -> None:
    program = (
        "import sys; from inflight.commands.key import add, limit, list, revoke\n"
        "print({'uvicorn', 'starlette', 'grpc', 'pydantic', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_limit_without_options_shows_and_changes_nothing(run: Any, path: Path) -> None:
    assert run("add", "shop", "--tokens-per-minute", "7").code == 0
    before = path.read_bytes()
    shown = run("limit", "shop")
    assert (shown.code, path.read_bytes()) == (0, before)
    assert "tokens_per_minute=7" in shown.out
    assert "no quotas" in run("limit", "shop", "--none").out
    assert run("limit", "shop", "--none", "--tokens-per-day", "7").code == 2
