from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_engines.engine_files import hash_file
from build_engines.errors import BuildError
from build_engines.manifest import Manifest
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.option_checks import verify_draft_engine
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def engine(tiny_engine: TinyEngine) -> Path:
    return tiny_engine("llama")


@pytest.fixture
def draft_with(engine: Path, tmp_path: Path) -> Callable[[Change], Path]:
    """`draft_with(change)`: a copy of the engine whose tokenizer.json was changed, its manifest following."""

    def make(change: Change) -> Path:
        draft = tmp_path / "draft"
        shutil.copytree(engine, draft)
        tokenizer = json.loads((draft / "tokenizer.json").read_text())
        change(tokenizer)
        (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
        manifest = json.loads((draft / "engine.json").read_text())
        manifest["files"]["tokenizer.json"] = {
            "sha256": hash_file(draft / "tokenizer.json"),
            "bytes": (draft / "tokenizer.json").stat().st_size,
        }
        (draft / "engine.json").write_text(json.dumps(manifest))
        return draft

    return make


def swap_two_tokens(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    first, other = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[other] = vocabulary[other], vocabulary[first]


def test_an_engine_may_draft_for_itself(engine: Path) -> None:
    manifest = Manifest.read(engine)
    assert verify_draft_engine(engine, engine, manifest) == manifest


def test_the_same_words_in_another_file_will_do(engine: Path, draft_with: Callable[[Change], Path]) -> None:
    draft = draft_with(lambda tokenizer: tokenizer.update(truncation=None))
    assert verify_draft_engine(draft, engine, Manifest.read(engine)) == Manifest.read(draft)


def test_other_words_are_refused(engine: Path, draft_with: Callable[[Change], Path]) -> None:
    draft = draft_with(swap_two_tokens)
    with raises(DeployError, "invalid_parameter", naming=str(draft)):
        verify_draft_engine(draft, engine, Manifest.read(engine))


def test_another_number_of_tokens_is_refused(engine: Path) -> None:
    manifest = Manifest.read(engine).model_copy(update={"vocab_size": 32_000})
    with raises(DeployError, "invalid_parameter", naming=("1,536", "32,000")):
        verify_draft_engine(engine, engine, manifest)


def test_a_damaged_draft_is_refused(engine: Path, draft_with: Callable[[Change], Path]) -> None:
    draft = draft_with(lambda tokenizer: None)
    (draft / "openvino_model.xml").unlink()
    with raises(BuildError, "engine_damaged", naming="openvino_model.xml"):
        verify_draft_engine(draft, engine, Manifest.read(engine))
