"""An encoder of target tensorrt in the real Triton, on stand-ins for the GPU and for TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from inflight_client import Client
from tokenizers import Tokenizer

from inflight.deploy.checks.doctor import Finding, run_checks
from inflight.deploy.errors import DeployError
from inflight.deploy.publish.publish import publish_repository
from inflight.deploy.repository.assemble import AssemblyRequest
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.runtime.backends.openvino.encoder import load_encoders
from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderDescription
from tests.fixtures.encoders import TinyEncoder
from tests.fixtures.errors import raises
from tests.fixtures.nvidia import A100, NvidiaPrograms
from tests.fixtures.tensorrt import TensorRtEncoder

TEXTS = ["tea", "a longer text about coffee", "word " * 150] * 9


def test_an_assembled_repository_is_served(
    tensorrt_programs: NvidiaPrograms, tensorrt_encoder: TensorRtEncoder, tiny_encoder: TinyEncoder, tmp_path: Path
) -> None:
    order = AssemblyRequest(EngineSet.find(tensorrt_encoder("embed")), DeploymentOptions(), vendored=True)
    assert any("compute capability 9.0" in note for note in order.notes(tmp_path))
    publish_repository(order, tmp_path / "out", lambda line: None)
    with Server(tmp_path / "out", on_message=lambda line: None) as server, Client(server.grpc_address) as client:
        served = client.embed(TEXTS)
    directory = tiny_encoder("embed")
    manifest = EncoderDescription.from_directory(str(directory))
    (openvino,) = load_encoders(str(directory), manifest, 0, 1, PlannerLimits(1024, 32, 1))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text, vector in zip(TEXTS, served.vectors, strict=True):
        reference = openvino.run([EncoderInput(tokenizer.encode(text).ids)])[0]
        assert np.dot(vector, reference) >= 0.9999


def test_another_gpu_is_refused_by_serve_and_doctor(
    tensorrt_programs: NvidiaPrograms, tensorrt_encoder: TensorRtEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorrt_programs.having(gpus=[A100])
    monkeypatch.setattr("inflight.deploy.checks.doctor._smoke_test", lambda: Finding("smoke test", "ok", ""))
    engine = tensorrt_encoder("embed")
    with raises(DeployError, "engine_incompatible", naming=("compute capability 9.0", "NVIDIA A100")):
        Server(engine, on_message=lambda line: None).start()
    findings = [(one.state, one.found) for one in run_checks(engine) if one.name == "engine"]
    assert any(state == "missing" and "compiled on NVIDIA H100" in what for state, what in findings)
