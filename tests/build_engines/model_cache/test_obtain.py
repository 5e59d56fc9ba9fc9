"""Engines that are built from checkpoints and from models of a hub, by the real build."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from build_engines.build import BuildOptions
from build_engines.cpu_precision import choose_precision, find_processor
from build_engines.errors import BuildError
from build_engines.llmapi.arguments import LlmArguments
from build_engines.model_cache.cache import ModelCache
from build_engines.model_cache.obtain import obtain_engine
from tests.build_engines.build_runs import RecordedProgress, StartedBuild, UntilExport
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises
from tests.fixtures.hub import COMMIT, NAME, Hub, HubModelFiles
from tests.fixtures.waiting import wait_until

PULL = [sys.executable, "-c", "from inflight.cli import main; main()", "pull", NAME, "--json"]


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


def begins_a_build(cache: ModelCache, checkpoint: Path, options: BuildOptions | None = None) -> bool:
    """Return whether an engine of `checkpoint` would be built."""
    try:
        with obtain_engine(cache, str(checkpoint), options or BuildOptions(), UntilExport()):
            return False
    except StartedBuild:
        return True


def test_a_directory_is_built_again_when_content_options_or_version_change(
    cache: ModelCache, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = choose_precision(find_processor()).precision
    with obtain_engine(cache, str(checkpoint), BuildOptions(), RecordedProgress()) as engine:
        assert engine.manifest is not None
        assert (engine.manifest.name, engine.precision) == ("checkpoint", usual)
    monkeypatch.chdir(checkpoint.parent)
    for same in (checkpoint, Path("checkpoint"), Path("./checkpoint/")):
        assert not begins_a_build(cache, same)
    assert not begins_a_build(cache, checkpoint, BuildOptions(precision=usual))
    assert begins_a_build(cache, checkpoint, BuildOptions(precision="fp32"))
    os.utime(checkpoint / "tokenizer.json")
    (checkpoint / "notes.txt").write_text("not of the model")
    assert not begins_a_build(cache, checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.version", lambda name: "99")
        assert begins_a_build(cache, checkpoint)
    config = json.loads((checkpoint / "generation_config.json").read_text())
    (checkpoint / "generation_config.json").write_text(json.dumps(config | {"temperature": 0.5}))
    assert begins_a_build(cache, checkpoint)


def test_an_encoder_of_a_directory_is_known_by_its_files(tiny_checkpoint: TinyCheckpoint, cache: ModelCache) -> None:
    checkpoint = tiny_checkpoint("bert-embed")
    steps = UntilExport()
    with pytest.raises(StartedBuild), obtain_engine(cache, str(checkpoint), BuildOptions(), steps):
        pass
    (entry,) = cache.entries()
    with pytest.raises(StartedBuild), obtain_engine(cache, str(checkpoint), BuildOptions(task="embed"), steps):
        pass
    assert [one.record for one in cache.entries()] == [entry.record], "the task was found already"


def test_an_encoder_of_the_hub_comes_with_its_modules(
    hub_here: Hub, tiny_checkpoint: TinyCheckpoint, cache: ModelCache
) -> None:
    hub_here.models[NAME] = HubModelFiles(tiny_checkpoint("bert-embed"))
    with pytest.raises(StartedBuild), obtain_engine(cache, NAME, BuildOptions(), UntilExport()):
        pass
    assert any(name.endswith("1_Pooling/config.json") for name in hub_here.fetched)


def test_a_model_of_the_hub_is_built_once_and_known_without_the_hub(
    hub_here: Hub, tiny_checkpoint: TinyCheckpoint, cache: ModelCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the target that compiles nothing; tests/commands/test_serve.py serves a model of the hub by its name."""
    options = BuildOptions("llmapi", settings=LlmArguments())
    hub_here.models[NAME] = HubModelFiles(tiny_checkpoint("llama"))
    with obtain_engine(cache, NAME, options, RecordedProgress()) as engine:
        assert engine.manifest is not None
        assert (engine.record.name, engine.record.revision, engine.manifest.name) == (NAME, COMMIT, NAME)
        assert engine.manifest.source.checkpoint == NAME
    fetched = len(hub_here.fetched)
    with obtain_engine(cache, NAME, options, UntilExport(), COMMIT):
        pass
    assert len(hub_here.fetched) == fetched
    shutil.rmtree(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with obtain_engine(cache, NAME, options, UntilExport()) as again:
        assert again.engine == engine.engine
    with (
        raises(BuildError, "storage_unreachable", naming=(NAME, "HF_HUB_OFFLINE")),
        obtain_engine(cache, NAME, replace(options, precision="fp32"), UntilExport()),
    ):
        pass


def test_an_openvino_model_of_the_hub_is_fetched_once_and_has_one_precision(
    hub_here: Hub, exported_llama: Path, cache: ModelCache
) -> None:
    hub_here.models[NAME] = HubModelFiles(exported_llama)
    usual = choose_precision(find_processor()).precision
    with obtain_engine(cache, NAME, BuildOptions(), RecordedProgress()) as engine:
        assert engine.precision == "fp32"
    assert hub_here.fetched.count("openvino_model.bin") == 1
    with (
        raises(BuildError, "invalid_parameter", naming=(NAME, "fp32", usual)),
        obtain_engine(cache, NAME, BuildOptions(precision=usual), UntilExport()),
    ):
        pass


def test_a_new_commit_is_built_anew(hub_here: Hub, tiny_checkpoint: TinyCheckpoint, cache: ModelCache) -> None:
    model = hub_here.models[NAME] = HubModelFiles(tiny_checkpoint("llama"))
    for commit in (COMMIT, "b" * 40):
        model.commit = commit
        with pytest.raises(StartedBuild), obtain_engine(cache, NAME, BuildOptions(), UntilExport()):
            pass
    assert {entry.record.revision for entry in cache.entries()} == {COMMIT, "b" * 40}


def test_an_architecture_that_is_not_supported_is_refused_before_the_weights(
    hub_here: Hub, checkpoint: Path, cache: ModelCache
) -> None:
    hub_here.models[NAME] = HubModelFiles(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"architectures": ["T5ForConditionalGeneration"]}))
    with (
        raises(BuildError, "unsupported_architecture", naming="T5ForConditionalGeneration"),
        obtain_engine(cache, NAME, BuildOptions(), RecordedProgress()),
    ):
        pass
    assert hub_here.weights_fetched() == 0


def test_a_revision_of_a_directory_is_refused(cache: ModelCache, checkpoint: Path) -> None:
    with (
        raises(BuildError, "invalid_parameter", naming=str(checkpoint)),
        obtain_engine(cache, str(checkpoint), BuildOptions(), RecordedProgress(), "main"),
    ):
        pass


@pytest.mark.slow
def test_two_at_once_build_one_engine(hub: Hub, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    model = hub.models[NAME] = HubModelFiles(tiny_checkpoint("llama"), pause=threading.Event())
    both = [start_pull(hub, tmp_path), start_pull(hub, tmp_path)]
    waiting = wait_until(lambda: [one for one in both if "waiting" in one.stderr_text()], "the one that waits")
    assert model.pause is not None
    model.pause.set()
    assert [one.process.wait(120) for one in both] == [0, 0]
    assert hub.weights_fetched() == 1
    assert sum("Converting" in one.stderr_text() for one in both) == 1
    assert len(waiting) == 1
    assert len(ModelCache(tmp_path / "engines").entries()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("step", ["Downloading", "Converting"])
def test_a_killed_pull_is_continued_by_the_next(
    hub: Hub, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, step: str
) -> None:
    model = hub.models[NAME] = HubModelFiles(tiny_checkpoint("llama"))
    if step == "Downloading":
        model.pause = threading.Event()
    killed = start_pull(hub, tmp_path)
    wait_until(lambda: step in killed.stderr_text(), step)
    if model.pause is not None:
        wait_until(hub.weights_fetched, "the weights")
    killed.process.kill()
    killed.process.wait()
    if model.pause is not None:
        model.pause.set()
    [left] = ModelCache(tmp_path / "engines").entries()
    assert left.state == "incomplete"
    done = subprocess.run(PULL, env=hub.environment(tmp_path), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["state"] == "ready"
    [entry] = ModelCache(tmp_path / "engines").entries()
    assert sorted(path.name for path in entry.directory.iterdir()) == ["engine", "entry.json", "lock"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_download_at_once(
    hub: Hub, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, number: signal.Signals
) -> None:
    model = hub.models[NAME] = HubModelFiles(tiny_checkpoint("llama"), pause=threading.Event())
    interrupted = start_pull(hub, tmp_path)
    wait_until(hub.weights_fetched, "the weights")
    interrupted.process.send_signal(number)
    assert interrupted.process.wait(60) != 0
    assert "Traceback" not in interrupted.stderr_text()
    assert model.pause is not None
    model.pause.set()


class Pull:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def stderr_text(self) -> str:
        return self._log.read_text()


def start_pull(hub: Hub, home: Path) -> Pull:
    log = home / f"pull-{len(list(home.glob('pull-*')))}.log"
    with log.open("wb") as file:
        return Pull(subprocess.Popen(PULL, env=hub.environment(home), stderr=file, stdout=subprocess.DEVNULL), log)
