from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from build_engines.checkpoints.locate import locate_checkpoint
from build_engines.errors import BuildError
from build_engines.progress import NoBuildProgress
from tests.fixtures.errors import raises


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert locate_checkpoint(str(tmp_path), NoBuildProgress()) == tmp_path


def test_a_local_directory_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Qwen2.5-0.5B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate_checkpoint("Qwen/Qwen2.5-0.5B", NoBuildProgress()) == Path("Qwen/Qwen2.5-0.5B")


@pytest.mark.parametrize("path", ["./no/where", "/no/where", "nowhere", "a/b/c", "../a/b", "runs/exp--1", "x" * 300])
def test_what_is_no_hub_name_is_a_path_without_asking_the_hub(path: str) -> None:
    assert locate_checkpoint(path, NoBuildProgress()) == Path(path)


@pytest.mark.parametrize(("name", "words"), [("~nosuch/x", "~nosuch/x"), ("runs/exp-", "runs/exp-")])
def test_a_name_that_is_neither_path_nor_hub_name_is_one_sentence(name: str, words: str) -> None:
    with raises(BuildError, "checkpoint_not_found", naming=words):
        locate_checkpoint(name, NoBuildProgress())


def test_a_hub_out_of_reach_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens there; with the network's own hub this would take the network.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with raises(BuildError, "storage_unreachable", naming="Hugging Face") as caught:
        locate_checkpoint("inflight-tests/no-such-model", NoBuildProgress())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", ["https://huggingface.co/", "huggingface.co/", "hf.co/", "hf://"])
@pytest.mark.parametrize("rest", ["", "/", "/tree/main", "?x=1"])
def test_a_page_of_the_hub_is_named_as_the_model(start: str, rest: str) -> None:
    with raises(BuildError, "checkpoint_not_found", naming="write Qwen/Qwen2.5-0.5B."):
        locate_checkpoint(f"{start}Qwen/Qwen2.5-0.5B{rest}", NoBuildProgress())
