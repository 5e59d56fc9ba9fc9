"""What is looked at for which engine. Whether a server starts is in tests/commands/test_doctor.py."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from build_engines.manifest import Manifest
from inflight.cli import cli
from inflight.deploy.checks.doctor import Finding, run_checks
from inflight.deploy.publish.publish import publish_repository
from inflight.deploy.publish.s3_address import S3Address
from inflight.deploy.repository.assemble import AssemblyRequest
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.encoders import TinyEncoder
from tests.fixtures.engines import TinyEngine
from tests.fixtures.gpu_machine import gpu_machine
from tests.fixtures.manifests import encoder_manifest
from tests.fixtures.nvidia import H100
from tests.fixtures.s3_server import s3_server
from tests.fixtures.tensorrtllm import GpuEngine

Install = Callable[..., None]


@pytest.fixture(scope="module")
def embedded(tiny_engine: TinyEngine) -> Path:
    return tiny_engine("llama")


@pytest.fixture(autouse=True)
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.deploy.checks.doctor._smoke_test", lambda: Finding("smoke test", "ok", ""))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Install:
    """`installed(tensorrt_llm="1.2.1", openvino=None)`: packages that are there, and that are not."""
    real = importlib.metadata.version

    def install(**packages: str | None) -> None:
        def version(name: str) -> str:
            installed_version = packages[name] if name in packages else real(name)
            if installed_version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return installed_version

        monkeypatch.setattr(importlib.metadata, "version", version)

    return install


@pytest.fixture
def gpu_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Install) -> None:
    """A machine as in the image for GPUs: Triton with its backend, TensorRT-LLM, a GPU, and no OpenVINO."""
    (tmp_path / "machine").mkdir()
    gpu_machine(monkeypatch, tmp_path / "machine", [H100])
    root = tmp_path / "opt"
    for name in ("bin/tritonserver", "backends/python/triton_python_backend_stub"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("#!/bin/sh\n")
        (root / name).chmod(0o755)
    (root / "backends" / "tensorrtllm").mkdir()
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{tmp_path / 'machine' / 'bin'}:{Path(sys.executable).parent}")
    installed(tensorrt_llm="1.2.1", openvino=None, ctranslate2=None)


def missing(place: str | Path | None = None) -> list[tuple[str, str, str]]:
    findings = [one for one in run_checks(place) if one.state == "missing"]
    return [(one.name, one.found, one.remedy) for one in findings]


def said(place: str | Path, name: str = "engine") -> list[Finding]:
    return [one for one in run_checks(place) if one.name == name]


@pytest.mark.usefixtures("gpu_image")
def test_the_image_for_gpus_can_serve_though_it_has_no_openvino(gpu_engine: GpuEngine) -> None:
    engine = gpu_engine("llama")
    assert missing() == []
    assert missing(engine) == []
    assert said(engine)[-1].found.endswith("for tensorrt-llm, whole, and fit for this machine")
    [engines] = said(engine, "engines")
    assert engines.found == "of target llmapi (tensorrt_llm 1.2.1), tensorrt-llm (Triton's backend tensorrtllm)"


@pytest.mark.usefixtures("gpu_image")
def test_there_an_embedded_engine_misses_its_library(embedded: Path) -> None:
    [(name, problem, remedy)] = missing(embedded)
    assert (name, problem) == ("engine", "tiny-llama is for target openvino, which needs the package openvino")
    assert "pip install" in remedy


def test_an_engine_of_the_llm_api_misses_tensorrt_llm_here(gpu_engine: GpuEngine, installed: Install) -> None:
    engine = gpu_engine("llama")
    Manifest.read(engine).model_copy(update={"target": "llmapi"}).write(engine)
    installed(tensorrt_llm=None)
    name, problem, remedy = missing(engine)[0]
    assert (name, remedy) == ("engine", "serve it in NVIDIA's container with TensorRT-LLM")
    assert problem.endswith("is for target llmapi, which needs the package tensorrt_llm")


def test_an_encoder_of_the_llm_api_misses_a_version_that_encodes(tmp_path: Path, installed: Install) -> None:
    encoder_manifest("embed", target="llmapi").write(tmp_path)
    installed(tensorrt_llm=None)
    name, problem, remedy = missing(tmp_path)[0]
    assert (name, remedy) == ("engine", "serve it where TensorRT-LLM 1.3 or later is installed")
    assert "tensorrt_llm" in problem


def test_a_machine_that_loads_no_engine_at_all_is_told_so(installed: Install) -> None:
    installed(tensorrt_llm=None, openvino=None, ctranslate2=None)
    assert [name for name, _, _ in missing()] == ["engines"]
    installed(tensorrt_llm=None, openvino=None, ctranslate2="4.8.5")
    assert missing() == []


def test_no_remedy_is_better_than_one_that_says_read_the_message(gpu_engine: GpuEngine) -> None:
    findings = said(gpu_engine("llama"))
    [compared] = [one for one in findings if one.found.startswith("No TensorRT-LLM was found here")]
    assert compared.remedy.startswith("if it does not load, serve it in the container nvcr.io/")
    assert not [one for one in findings if one.remedy == "read the message"]


def test_an_assembled_repository_is_looked_at_as_its_engine_is(gpu_engine: GpuEngine, tmp_path: Path) -> None:
    """Its own parameters count: here is no second GPU, and no first one either."""
    engine, out = gpu_engine("llama"), tmp_path / "out"
    options = DeploymentOptions(settings={"gpu_device_ids": "0;1"})
    publish_repository(AssemblyRequest(EngineSet.find(engine, options), options), out, print)
    assert any("names GPU 0, and this machine has 0" in one.found for one in said(out))
    with s3_server() as storage:
        address = storage.address("llama/v1")
        publish_repository(AssemblyRequest(EngineSet.find(engine, options), options), S3Address.parse(address), print)
        assert any("names GPU 0, and this machine has 0" in one.found for one in said(address))


def test_the_speed_of_an_embedded_engine_is_predicted(embedded: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(embedded), "--json"])
    findings = {single["name"]: single for single in json.loads(done.stdout)["findings"]}
    rates = re.findall(r"([0-9,.]+) at (\d+)", findings["prediction"]["found"])
    assert [count for _, count in rates] == ["1", "64"]
    single, many = (float(rate.replace(",", "")) for rate, _ in rates)
    assert 0 < single < many


def test_an_encoder_is_described_and_encodes_a_text(tiny_encoder: TinyEncoder) -> None:
    findings = {one.name: one for one in run_checks(tiny_encoder("embed"))}
    assert findings["engine"].state == findings["encoder"].state == "ok"
    assert "task embed, 64 dimensions, texts of up to 512 tokens" in findings["engine"].found
    assert findings["encoder"].found.startswith("tiny-bert-embed answered")


def test_an_encoder_that_can_not_be_loaded_is_missing(tiny_encoder: TinyEncoder, tmp_path: Path) -> None:
    made = encoder_manifest("embed")
    tokenizer = tiny_encoder("embed") / "tokenizer.json"
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (tmp_path / "openvino_model.xml").write_text("no graph")
    made.write(tmp_path)
    assert [one.state for one in said(tmp_path, "encoder")] == ["missing"]


def test_an_address_that_is_none_is_a_finding() -> None:
    done = CliRunner().invoke(cli, ["doctor", "s3:/models/a", "--json"])
    assert done.exit_code == 1
    finding = json.loads(done.stdout)["findings"][-1]
    assert finding["found"] == "'s3:/models/a' is neither a directory nor an address on S3"
    assert finding["remedy"] == "give a path, or s3://bucket/path"


def test_ports_in_use_are_told_with_who_uses_them(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def ports() -> Finding:
        return next(one for one in run_checks() if one.name == "ports")

    monkeypatch.setattr("inflight.deploy.checks.doctor._DEFAULT_PORTS", (server.ports.http, server.ports.grpc))
    assert ports().state == "ok"
    assert ports().found.count(f"in use by inflight (process {os.getpid()})") == 2
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr("inflight.deploy.checks.doctor._DEFAULT_PORTS", (server.ports.http, other.getsockname()[1]))
        assert ports().state == "warning"
        assert ports().found.endswith(f"(process {os.getpid()})")
