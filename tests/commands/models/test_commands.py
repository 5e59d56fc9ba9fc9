"""`inflight list`, `rm` and `pull`, on a cache with engines that were built before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.model_cache.cache import EntryRecord, ModelCache
from tests.fixtures.command_runner import CommandResult, CommandRunner
from tests.fixtures.engines import TinyEngine

NAMES = ("tests/tiny", "/models/own")

Run = Callable[..., CommandResult]


@pytest.fixture
def cache(tmp_path: Path, tiny_engine: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    """Two models, the first one in two revisions."""
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "cache"))
    found = ModelCache.default()

    def copy(out: Path) -> None:
        shutil.copytree(tiny_engine("llama"), out)

    for name, revision in ((NAMES[0], "a" * 40), (NAMES[0], "b" * 40), (NAMES[1], "c" * 40)):
        record = EntryRecord(
            name=name,
            revision=revision,
            requested_revision="main",
            target="openvino",
            precision=None,
            options="0",
            version="1",
        )
        with found.hold(record, copy, lambda line: None):
            pass
    return found


@pytest.fixture
def run(runner_of: Callable[[str], CommandRunner]) -> Run:
    return lambda command, *arguments: runner_of(command)(*arguments)


def test_list_shows_what_is_there(cache: ModelCache, run: Run) -> None:
    code, out, _ = run("list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["name"], row["revision"][0]) for row in rows] == [(NAMES[1], "c"), (NAMES[0], "b"), (NAMES[0], "a")]
    assert {(row["target"], row["precision"], row["state"]) for row in rows} == {("openvino", "fp32", "ready")}
    assert all(row["bytes"] > 100_000 and Path(row["engine"]).is_dir() for row in rows)
    _, out, _ = run("list")
    assert [line.split()[0] for line in out.splitlines()] == ["name", NAMES[1], NAMES[0], NAMES[0]]


def test_an_empty_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "none"))
    assert run("list", "--json")[:2] == (0, "[]\n")
    assert run("list")[0] == 0
    assert run("rm", "--all")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ([NAMES[0]], "c"),
        ([NAMES[0], NAMES[0], NAMES[1]], ""),
        ([NAMES[0], "--revision", "aaaa"], "bc"),
        ([NAMES[0], "--revision", "main", "--precision", "fp32", "--target", "openvino"], "c"),
        (["--all", "--revision", "c" * 40], "ab"),
        (["--all"], ""),
    ],
)
def test_rm_removes_what_it_names(cache: ModelCache, run: Run, arguments: list[str], left: str) -> None:
    assert run("rm", *arguments)[0] == 0
    assert sorted(entry.record.revision[0] for entry in cache.entries()) == list(left)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--all"),
        (["--all", NAMES[0]], 2, "--all"),
        (["tests/tinny"], 1, "did you mean tests/tiny? [engine_not_found]"),
        ([NAMES[0], "--precision", "int4"], 1, "[engine_not_found]"),
    ],
)
def test_rm_of_nothing_is_one_sentence(
    cache: ModelCache, run: Run, arguments: list[str], code: int, words: str
) -> None:
    found, _, errors = run("rm", *arguments)
    assert (found, len(cache.entries())) == (code, 3)
    assert words in errors


def test_rm_removes_the_others_before_it_reports_the_one_in_use(cache: ModelCache, run: Run) -> None:
    used = cache.find(NAMES[1])[0]
    with cache.hold(used.record, lambda out: None, lambda line: None):
        code, _, errors = run("rm", "--all")
    assert (code, [entry.record.name for entry in cache.entries()]) == (1, [NAMES[1]])
    assert errors.endswith("[engine_in_use]\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["pull", "ENGINE"], 2, "inflight serve"),
        (["pull", "CHECKPOINT", "--revision", "main"], 1, "[invalid_parameter]"),
        (["pull", "CHECKPOINT", "--precision", "fp8"], 2, "--precision"),
        (["serve", "ENGINE", "--precision", "int8"], 2, "--precision"),
        (["serve", "ENGINE", "--target", "openvino"], 2, "--target"),
        (["serve", "ENGINE", "--revision", "main"], 2, "--revision"),
        (["serve", "CHECKPOINT", "--revision", "main"], 1, "[invalid_parameter]"),
        (["serve", "CHECKPOINT", "--host", "0.0.0.0"], 1, "--behind-proxy"),
        (["serve", "ENGINE", "--served-model-name", ""], 1, "[invalid_parameter]"),
        (["serve", "ENGINE", "--served-model-name", "tea\n"], 1, "[invalid_parameter]"),
        (["serve", "ENGINE", "--served-model-name", "x" * 257], 1, "[invalid_parameter]"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(
    tiny_engine: TinyEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text("{}")
    places = {"ENGINE": str(tiny_engine("llama")), "CHECKPOINT": str(tmp_path)}
    found, _, errors = run(*(places.get(one, one) for one in arguments))
    assert found == code
    assert words in errors.splitlines()[-1]
    assert not (tmp_path / "cache").exists()
