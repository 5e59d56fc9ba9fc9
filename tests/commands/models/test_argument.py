from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.errors import BuildError
from inflight.commands.models.argument import kind_of
from tests.fixtures.errors import raises


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "engine/engine.json",
        "engine/config.json",
        "repository/inflight.json",
        "checkpoint/config.json",
        "owner/checkpoint/config.json",
        "owner/engine/engine.json",
        "other/notes.txt",
        "gguf/model.gguf",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        ("engine", "deployable"),
        ("owner/engine", "deployable"),
        ("repository", "deployable"),
        ("s3://models/tea/v1", "deployable"),
        ("checkpoint", "checkpoint"),
        ("./checkpoint/", "checkpoint"),
        ("owner/checkpoint", "checkpoint"),
        ("gguf/model.gguf", "checkpoint"),
        ("owner/model", "hub"),
        ("owner/model:Q4_K_M", "hub"),
        ("smollm2", "hub"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "hub"),
    ],
)
def test_an_argument_is_what_it_is(argument: str, kind: str) -> None:
    assert kind_of(argument) == kind


@pytest.mark.parametrize(
    ("argument", "code", "naming"),
    [
        ("other", "engine_not_found", "other"),
        ("other/notes.txt", "engine_not_found", "other/notes.txt"),
        ("empty", "engine_not_found", "empty"),
        ("link", "engine_not_found", "link"),
        ("", "engine_not_found", "engine.json"),
        ("gguf", "not_a_checkpoint", "model.gguf"),
        ("checkpont", "engine_not_found", ("checkpont", "checkpoint")),
        ("./nowhere", "engine_not_found", "./nowhere"),
        ("a/b/c", "engine_not_found", "a/b/c"),
        ("~nosuch/model", "checkpoint_not_found", "~nosuch/model"),
    ],
)
def test_what_is_nothing_is_one_sentence(argument: str, code: str, naming: str | tuple[str, ...]) -> None:
    with raises(BuildError, code, naming=naming) as caught:
        kind_of(argument)
    assert "\n" not in str(caught.value)
