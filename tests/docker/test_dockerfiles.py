"""The two Dockerfiles, as far as they can be checked without docker; hadolint reads them in `make check`."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from build_engines.containers import DEFAULT_CONTAINER
from inflight import __version__
from tests.docker.dockerfile import DockerfileStage, context, stages
from tests.fixtures.engines import ROOT

DOCKER = ROOT / "docker"
KINDS = ("cpu", "gpu")


def image(kind: str) -> DockerfileStage:
    """The last stage."""
    return stages(DOCKER / f"{kind}.Dockerfile")[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_bases_are_pinned_by_tag(kind: str) -> None:
    for stage in stages(DOCKER / f"{kind}.Dockerfile"):
        assert re.fullmatch(r"\S+:[\w.-]*\d[\w.-]*", stage.base), stage.base
    assert image(kind).labels["org.opencontainers.image.base.name"] == image(kind).base


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_says_what_it_is(kind: str) -> None:
    labels = image(kind).labels
    assert labels["org.opencontainers.image.title"] == f"inflight-{kind}"
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_it_runs_as_root(kind: str) -> None:
    assert image(kind).named("USER")[-1].rest == "1000:1000"  # a number, so that runAsNonRoot can be verified
    names = [instruction.name for instruction in image(kind).instructions]
    last = len(names) - 1 - names[::-1].index("USER")
    assert set(names[last:]) <= {"USER", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"}


@pytest.mark.parametrize("kind", KINDS)
def test_signals_reach_the_script_and_a_stop_drains(kind: str) -> None:
    assert image(kind).named("STOPSIGNAL")[0].rest == "SIGTERM"
    assert image(kind).named("ENTRYPOINT")[0].command[-1] == "/usr/local/bin/inflight-entrypoint"
    assert not image(kind).named("CMD")


@pytest.mark.parametrize("kind", KINDS)
def test_health_is_asked_for_as_compose_does(kind: str) -> None:
    (check,) = image(kind).named("HEALTHCHECK")
    compose = yaml.safe_load((DOCKER / f"compose.{kind}.yaml").read_text(encoding="utf-8"))
    asked = compose["services"]["inflight"]["healthcheck"]
    assert check.command == asked.pop("test")[1:]
    assert {name.replace("-", "_"): value for name, value in check.flags.items()} == {
        name: str(value) for name, value in asked.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_lie_where_they_are_called_and_may_be_run(kind: str) -> None:
    copied = {words[-1]: (words[0], step.flags) for step in image(kind).named("COPY") if (words := step.rest.split())}
    for place, script in (("inflight-entrypoint", "entrypoint.sh"), ("inflight-health", "health.py")):
        source, flags = copied[f"/usr/local/bin/{place}"]
        assert (source, flags["chmod"]) == (f"docker/{script}", "0755")
        first = (ROOT / source).read_text(encoding="utf-8").partition("\n")[0]
        assert first in ("#!/bin/sh", "#!/usr/bin/env python3")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_copied_is_in_the_context(kind: str) -> None:
    known = {str(path) for path in context(ROOT)}
    for stage in stages(DOCKER / f"{kind}.Dockerfile"):
        for step in stage.named("COPY"):
            for source in step.rest.split()[:-1] if "from" not in step.flags else []:
                assert source == "." or source in known, source
        for step in stage.named("RUN"):
            for mounted in re.findall(r"/source/([\w./]+)", step.rest):
                assert mounted in known, mounted


@pytest.mark.parametrize("kind", KINDS)
def test_places_are_the_scripts_own_defaults(kind: str) -> None:
    script = (DOCKER / "entrypoint.sh").read_text(encoding="utf-8")
    for name in ("INFLIGHT_ENGINE", "INFLIGHT_RUN_DIR"):
        assert f"${{{name}:-{image(kind).variables[name]}}}" in script
    assert image(kind).variables["HOME"] == image(kind).variables["INFLIGHT_RUN_DIR"]
    assert image(kind).named("EXPOSE")[0].rest == "8080 8000 8001 8002"


def test_the_gpu_image_is_the_container_that_engines_are_built_in() -> None:
    """By default, that is: an engine of another version takes another base (docs/docker.md)."""
    assert image("gpu").base == DEFAULT_CONTAINER.image
    first = (DOCKER / "gpu.Dockerfile").read_text(encoding="utf-8").partition("\n")[0]
    assert f"TensorRT-LLM {DEFAULT_CONTAINER.tensorrt_llm}." in first


def test_what_the_cpu_image_leaves_out_is_there_to_be_left_out() -> None:
    """The files that it removes from the packages of the lock exist in this environment, which has the same."""
    packages = Path(sys.executable).parent.parent / "lib" / "python3.11" / "site-packages"
    (removal,) = [step for step in stages(DOCKER / "cpu.Dockerfile")[1].named("RUN") if step.rest.startswith("rm -r ")]
    patterns = removal.rest.partition("&&")[0].split()[2:]
    assert len(patterns) > 5
    for pattern in patterns:
        assert list(packages.glob(pattern)), pattern
    assert (packages / "pytriton/tritonserver/python_backend_stubs/3.11").is_dir()


def test_the_wheel_of_the_context_has_all_that_an_image_needs(tmp_path: Path) -> None:
    """Built from nothing but what .dockerignore lets through, as in the first stage."""
    source = tmp_path / "source"
    for path in context(ROOT):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("inflight-*.whl")
    assert wheel.name == f"inflight-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    served = {path.relative_to("model_repository") for path in context(ROOT) if path.parts[0] == "model_repository"}
    assert {f"inflight/deploy/model_repository/{path}" for path in served} <= names
    for package in ("inflight", "build_engines", "client/inflight_client"):
        modules = {str(file.relative_to(ROOT)).removeprefix("client/") for file in (ROOT / package).rglob("*.py")}
        assert modules <= names
    assert not fnmatch.filter(names, "tests/*") + fnmatch.filter(names, "*.pyc")
