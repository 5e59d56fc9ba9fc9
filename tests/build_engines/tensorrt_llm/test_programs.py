"""The same build inside the container and, through docker, from outside it."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from build_engines.containers import DEFAULT_CONTAINER
from build_engines.errors import BuildError
from build_engines.manifest import Manifest
from build_engines.tensorrt_llm.commands import Command
from build_engines.tensorrt_llm.programs import EXAMPLES, Docker, Native, docker_for
from tests.build_engines.build_runs import names
from tests.build_engines.tensorrt_llm.conftest import Build
from tests.fixtures.errors import raises
from tests.fixtures.nvidia import NvidiaPrograms

LIMITS = {"limits.max_batch_size": 8, "limits.max_num_tokens": 1024}
COMMAND = Command("build", ("trtllm-build", "--workers", "1"), {"A": "1"})


def test_docker_builds_what_the_container_would(
    tmp_path: Path, build: Build, checkpoint: Path, nvidia_programs: NvidiaPrograms
) -> None:
    manifest = build(LIMITS, docker=True).manifest
    assert manifest.versions["container"] == DEFAULT_CONTAINER.image
    assert manifest.machine is not None
    assert {"rank0.engine", "config.json", "build.log"} <= manifest.files.keys()
    convert, compile_ = nvidia_programs.docker_runs()[-2:]
    assert convert[convert.index(DEFAULT_CONTAINER.image) + 1 :][:2] == [
        "python3",
        str(EXAMPLES / "models/core/llama/convert_checkpoint.py"),
    ]
    assert compile_[compile_.index(DEFAULT_CONTAINER.image) + 1] == "trtllm-build"
    for run in (convert, compile_):
        assert f"{checkpoint}:{checkpoint}" in run
        assert run[run.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
        assert "HF_HUB_OFFLINE=1" in run
    assert names(tmp_path) == ["checkpoint", "engine"]
    # The same engine built inside the container is not another one, but for who knows the container's name.
    inside = build(LIMITS).manifest
    assert inside.files["config.json"] == manifest.files["config.json"]


def test_a_checkpoint_of_links_is_mounted_where_its_files_really_lie(tmp_path: Path) -> None:
    """The hub's cache has snapshots/HASH/model.safetensors -> ../../blobs/HASH."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1").write_text("weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1")
    line = Docker().line(COMMAND, {}, [snapshot, tmp_path / "engine"])
    mounts = [value for option, value in pairwise(line) if option == "-v"]
    assert mounts == [f"{path}:{path}" for path in (blobs, tmp_path / "engine", snapshot)]


def test_a_path_within_another_is_mounted_once(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    line = Docker().line(COMMAND, {}, [tmp_path, tmp_path / "inner"])
    assert [value for option, value in pairwise(line) if option == "-v"] == [f"{tmp_path}:{tmp_path}"]


def test_what_docker_is_told(tmp_path: Path) -> None:
    docker = docker_for(tmp_path, Docker("some/image:1", "device=1", "2g"))
    line = docker.line(COMMAND, {"HF_HUB_OFFLINE": "1"}, [])
    assert line[:2] == ["docker", "run"]
    assert line[-4:] == ["some/image:1", "trtllm-build", "--workers", "1"]
    pairs = set(pairwise(line))
    assert {("--gpus", "device=1"), ("--shm-size", "2g"), ("-e", "HF_HUB_OFFLINE=1"), ("-e", "A=1")} <= pairs
    assert docker.stop_command == ["docker", "kill", docker.name]
    assert docker.container() == "some/image:1"
    assert docker_for(tmp_path / "other", docker).name != docker.name


def test_an_image_that_is_not_here_is_told_with_the_way_to_get_it(
    build: Build, nvidia_programs: NvidiaPrograms
) -> None:
    nvidia_programs.having(images=[])
    with raises(BuildError, "package_missing", naming="nvcr.io"):
        build(LIMITS, docker=True)


def test_a_container_without_the_examples_is_told(nvidia_programs: NvidiaPrograms) -> None:
    Docker().check("quantization/quantize.py")
    with raises(BuildError, "package_missing", naming="/elsewhere/quantization/quantize.py"):
        Docker(examples=Path("/elsewhere")).check("quantization/quantize.py")


def test_a_machine_without_docker_or_the_programs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvidia_programs: NvidiaPrograms
) -> None:
    Native(nvidia_programs.examples).check("quantization/quantize.py")
    with raises(BuildError, "package_missing", naming="--examples-dir"):
        Native(tmp_path).check("quantization/quantize.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    for programs, missing in ((Docker(), "docker"), (Native(), "trtllm-build")):
        with raises(BuildError, "package_missing", naming=missing):
            programs.detect() if isinstance(programs, Docker) else programs.check("quantization/quantize.py")


def test_inside_tritons_container_the_manifest_names_it(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "26.04")
    build(LIMITS)
    container = Manifest.read(tmp_path / "engine").versions["container"]
    assert container == "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"
