"""Triton's ensembles hand on the sequence id that a model gives a request: `streams/sequence_ids.py` relies on it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.deploy.server import ports, triton
from inflight.deploy.server.probe import Probe
from inflight.deploy.server.run_directory import remove_shared_memory
from tests.fixtures.ports import free_port
from tests.fixtures.waiting import wait_until
from tests.serving.raw_requests import generate_stream

NAMER = Path(__file__).resolve().parents[2] / "standins" / "sequence_ids" / "namer.c"
CONFIGS = {
    "namer": """
backend: "namer"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "PREPARED" data_type: TYPE_INT32 dims: [ 1 ] } ]
""",
    "engine": """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "PREPARED" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "CHUNK" data_type: TYPE_INT32 dims: [ 1 ] } ]
dynamic_batching { }
""",
    "teller": """
backend: "python"
input [ { name: "CHUNK" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { preserve_ordering: true }
""",
    "all": """
platform: "ensemble"
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "name" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "namer" model_version: -1
    input_map { key: "TEXT" value: "text_input" } output_map { key: "PREPARED" value: "_prepared" } },
  { model_name: "engine" model_version: -1
    input_map { key: "PREPARED" value: "_prepared" } output_map { key: "CHUNK" value: "_chunk" } },
  { model_name: "teller" model_version: -1
    input_map { key: "CHUNK" value: "_chunk" } output_map { key: "NAME" value: "name" } } ] }
""",
}
ENGINE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                chunk = pb_utils.Tensor("CHUNK", np.array([[number]], np.int32))
                sender.send(pb_utils.InferenceResponse([chunk]), flags=int(number == 2))
"""
TELLER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        names = [np.array([[str(request.correlation_id()).encode()]], np.object_) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("NAME", name)]) for name in names]
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    repository = tmp_path / "repository"
    for name, config in CONFIGS.items():
        (repository / name / "1").mkdir(parents=True)
        kind = "" if "ensemble" in config else "instance_group [ { kind: KIND_CPU } ]"
        (repository / name / "config.pbtxt").write_text(f'name: "{name}" max_batch_size: 8 {kind} {config}')
    (repository / "engine" / "1" / "model.py").write_text(ENGINE)
    (repository / "teller" / "1" / "model.py").write_text(TELLER)
    installation = triton.mirror_wheel(triton.find_triton(), tmp_path / "triton")
    library = installation.root / "backends" / "namer" / "libtriton_namer.so"
    library.parent.mkdir()
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, NAMER], check=True)
    chosen, prefix = ports.ListenPorts(free_port(), free_port(), free_port()), f"inflight-{secrets.token_hex(6)}-"
    command = triton.server_command(
        installation,
        str(repository),
        hosts=ports.ListenHosts(),
        ports=chosen,
        shm_prefix=prefix,
        admin_key="key",
        exit_seconds=2,
    )
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, env=triton.server_environment(installation), stdout=log, stderr=log)
    try:
        probe = Probe("127.0.0.1", chosen.http, "key")
        wait_until(lambda: server.poll() is not None or probe.ready())
        assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
        yield f"127.0.0.1:{chosen.http}"
    finally:
        server.terminate()
        server.wait(30)
        remove_shared_memory(prefix)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in is a backend in C")
def test_an_ensemble_hands_on_the_name_that_a_model_gives_whatever_the_client_says(address: str) -> None:
    asked = [{}, {}, {"id": "same", "sequence_id": 7}, {"id": "same", "sequence_id": 7}]
    said = []
    for values in asked:
        events = [event for _, event in generate_stream(address, {"text_input": "tea", **values}, "all")]
        said.append({event["name"] for event in events})
        assert len(events) == 3
    assert [len(names) for names in said] == [1] * 4
    names = [int(name) for found in said for name in found]
    assert len(set(names)) == 4
    assert all(name >= 2**61 for name in names)
