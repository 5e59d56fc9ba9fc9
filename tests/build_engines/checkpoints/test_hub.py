from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from build_engines.checkpoints.hub import download, find_hub_model
from build_engines.errors import BuildError
from build_engines.progress import NoBuildProgress
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises
from tests.fixtures.hub import COMMIT, NAME, Hub, HubModelFiles


@pytest.fixture
def model(hub_here: Hub, tiny_checkpoint: TinyCheckpoint) -> HubModelFiles:
    hub_here.models[NAME] = HubModelFiles(tiny_checkpoint("llama"))
    return hub_here.models[NAME]


def fetch(revision: str | None = None) -> Path:
    hub_model = find_hub_model(NAME, revision)
    hub_model.check_weights()
    return download(hub_model, NoBuildProgress())


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_model_is_downloaded_once(hub_here: Hub, model: HubModelFiles, revision: str | None) -> None:
    hub_model = find_hub_model(NAME, revision)
    directory = fetch(revision)
    weights = model.directory / "model.safetensors"
    assert hub_model.commit == COMMIT
    assert hub_model.total_bytes == sum(path.stat().st_size for path in directory.iterdir())
    assert (directory / weights.name).read_bytes() == weights.read_bytes()
    fetched = len(hub_here.fetched)
    assert fetch(revision) == directory
    assert len(hub_here.fetched) == fetched


@pytest.mark.parametrize(
    ("change", "code", "naming"),
    [
        ({"gated": 401}, "storage_denied", (NAME, "HF_TOKEN")),
        ({"gated": 403}, "storage_denied", (NAME, "HF_TOKEN")),
        ({"status": 401}, "storage_denied", (NAME, "HF_TOKEN")),
        ({"status": 403}, "storage_denied", (NAME, "HF_TOKEN")),
        ({"status": 503}, "storage_unreachable", (NAME, "503")),
        ({"claimed_bytes": 10**18}, "disk_full", (NAME, "HF_HOME")),
        ({"cut_after": 0}, "storage_unreachable", NAME),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(
    hub_here: Hub, model: HubModelFiles, change: dict[str, int], code: str, naming: str | tuple[str, ...]
) -> None:
    for name, value in change.items():
        setattr(model, name, value)
    with raises(BuildError, code, naming=naming) as caught:
        fetch()
    assert "\n" not in str(caught.value)
    if "cut_after" not in change:
        assert hub_here.weights_fetched() == 0


@pytest.mark.parametrize("token", [None, "hf_secret"])
def test_a_missing_model_or_revision_is_one_sentence(
    hub_here: Hub, model: HubModelFiles, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with raises(BuildError, "checkpoint_not_found", naming="no-such-branch"):
        find_hub_model(NAME, "no-such-branch")
    with raises(BuildError, "checkpoint_not_found", naming="tests/no-model"):
        find_hub_model("tests/no-model")


def test_the_token_opens_a_gated_model(hub_here: Hub, model: HubModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    model.gated, model.token = 401, "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert (fetch() / "config.json").is_file()
    assert hub_here.tokens == {"Bearer hf_secret"}


@pytest.mark.parametrize("name", ["model.gguf", "pytorch_model.bin"])
def test_a_model_without_safetensors_is_refused_before_the_download(
    hub_here: Hub, model: HubModelFiles, tmp_path: Path, name: str
) -> None:
    model.directory = tmp_path / "files"
    model.directory.mkdir()
    for file in ("config.json", name):
        (model.directory / file).write_text("{}")
    with raises(BuildError, "not_a_checkpoint", naming=NAME):
        fetch()
    assert hub_here.fetched == []


@pytest.mark.parametrize(
    ("config", "files", "wanted"),
    [
        (
            {"architectures": ["MarianMTModel"], "model_type": "marian"},
            ("pytorch_model.bin", "source.spm", "rust_model.ot"),
            {"pytorch_model.bin", "source.spm"},
        ),
        ({}, ("model.bin", "vocabulary.txt", "pytorch_model.bin"), {"model.bin", "vocabulary.txt"}),
        (
            {"architectures": ["MarianMTModel"], "model_type": "marian"},
            ("model.safetensors", "pytorch_model.bin"),
            {"model.safetensors"},
        ),
    ],
)
def test_the_files_of_models_with_an_encoder_and_a_decoder_are_downloaded(
    config: dict[str, object],
    files: tuple[str, ...],
    wanted: set[str],
    hub_here: Hub,
    model: HubModelFiles,
    tmp_path: Path,
) -> None:
    model.directory = tmp_path / "files"
    model.directory.mkdir()
    (model.directory / "config.json").write_text(json.dumps(config))
    for name in files:
        (model.directory / name).write_text("{}")
    assert {path.name for path in fetch().iterdir()} == wanted | {"config.json"}


@pytest.mark.parametrize("offline", [False, True])
def test_a_quantization_chooses_the_file(
    hub_here: Hub, model: HubModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    gguf_files(model, tmp_path, "tiny.Q4_K_M.gguf", "tiny.Q4_K_S.gguf", "tiny.Q8_0.gguf")
    assert download(find_hub_model(f"{NAME}:q4_k_m"), NoBuildProgress()).name == "tiny.Q4_K_M.gguf"
    if offline:
        stop_hub(hub_here, monkeypatch)
        assert download(find_hub_model(f"{NAME}:q4_k_m"), NoBuildProgress()).name == "tiny.Q4_K_M.gguf"
    assert [name for name in hub_here.fetched if name.endswith(".gguf")] == ["tiny.Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("files", "wanted", "code", "naming"),
    [
        (["tiny.Q4_K_M.gguf"], "Q8_0", "checkpoint_not_found", "tiny.Q4_K_M.gguf"),
        (["one.Q4_0.gguf", "two.Q4_0.gguf"], "Q4_0", "checkpoint_not_found", "two.Q4_0.gguf"),
        (["tiny-Q4_0-00001-of-00002.gguf", "tiny-Q4_0-00002-of-00002.gguf"], "Q4_0", "not_a_checkpoint", "split"),
        (["notes.json"], "Q4_0", "checkpoint_not_found", "Q4_0"),
    ],
)
def test_a_quantization_that_names_no_single_file_is_refused_before_the_download(
    hub_here: Hub, model: HubModelFiles, tmp_path: Path, files: list[str], wanted: str, code: str, naming: str
) -> None:
    gguf_files(model, tmp_path, *files)
    with raises(BuildError, code, naming=naming):
        find_hub_model(f"{NAME}:{wanted}")
    assert hub_here.fetched == []


def gguf_files(model: HubModelFiles, place: Path, *names: str) -> None:
    model.directory = place / "files"
    model.directory.mkdir()
    for name in names:
        (model.directory / name).write_text("GGUF")


def test_a_connection_that_breaks_again_and_again_still_gets_there(hub_here: Hub, model: HubModelFiles) -> None:
    weights = model.directory / "model.safetensors"
    model.cut_after = weights.stat().st_size // 3 + 1
    assert (fetch() / weights.name).read_bytes() == weights.read_bytes()
    assert hub_here.weights_fetched() > 2


def stop_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")


def forbid_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def refuse_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.models[NAME].status = 403


@pytest.mark.parametrize("cut_off", [stop_hub, forbid_network, refuse_token])
def test_an_earlier_download_is_used_while_the_hub_is_out_of_reach(
    hub_here: Hub,
    model: HubModelFiles,
    monkeypatch: pytest.MonkeyPatch,
    cut_off: Callable[[Hub, pytest.MonkeyPatch], None],
) -> None:
    directory = fetch()
    cut_off(hub_here, monkeypatch)
    assert fetch() == directory
    with raises(BuildError, "storage_denied" if cut_off is refuse_token else "storage_unreachable", naming=NAME):
        fetch("another-branch")
