"""A real Triton with the scripted models `embedding`, `rerank` and `classify` (scripted_encoder.py)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from inflight_client import Client

from inflight.deploy.server import triton
from inflight.deploy.server.ports import ListenHosts, choose_ports
from inflight.deploy.server.process import TritonProcess
from inflight.deploy.server.run_directory import ServerRunDirectory
from tests.client.support import scripted_encoder
from tests.fixtures.waiting import wait_until

_COMMON = {
    "inputs": ("truncate BOOL 1", "priority INT32 1"),
    "outputs": ("num_input_tokens INT32 1", "truncated BOOL 1", "error STRING 1"),
}
_TEXTS = ("text_input STRING 1", "input_ids INT32 -1", "input_lengths INT32 1")
_MODELS = {
    "embedding": ("embed", (*_TEXTS, "input_type STRING 1", "dimensions INT32 1"), ("embedding FP32 -1",)),
    "classify": ("classify", _TEXTS, ("scores FP32 -1", "labels STRING -1")),
    "rerank": ("rerank", ("query STRING 1", "documents STRING -1"), ("scores FP32 -1",)),
}


class EncoderServer(NamedTuple):
    grpc_address: str
    http_address: str
    log: Path


@contextmanager
def encoder_server(directory: Path) -> Iterator[EncoderServer]:
    """Start the server with its repository in the directory."""
    for model in _MODELS:
        (directory / model / "1").mkdir(parents=True)
        (directory / model / "config.pbtxt").write_text(_config(model))
        shutil.copy(scripted_encoder.__file__, directory / model / "1" / "model.py")
    run = ServerRunDirectory.create()
    hosts = ListenHosts()
    ports = choose_ports(hosts, None, None, None)
    installation = triton.mirror_wheel(triton.find_triton(), run.path / "triton")
    command = triton.server_command(
        installation, directory, hosts=hosts, ports=ports, shm_prefix=run.shm_prefix, admin_key="key", exit_seconds=4
    )
    process = TritonProcess(command, triton.server_environment(installation), run.log, run.shm_prefix)
    server = EncoderServer(f"127.0.0.1:{ports.grpc}", f"127.0.0.1:{ports.http}", run.log)
    try:
        with Client(f"http://{server.http_address}") as client:
            wait_until(lambda: process.poll() is not None or client.ready())
            assert process.poll() is None, run.log.read_text()
        yield server
    finally:
        process.stop(5.0)
        run.close()


def _config(model: str) -> str:
    task, inputs, outputs = _MODELS[model]
    lines = [f'name: "{model}"', 'backend: "python"', f"max_batch_size: {0 if task == 'rerank' else 256}"]
    for side, own in (("input", inputs), ("output", outputs)):
        for each in (*own, *_COMMON[f"{side}s"]):
            name, datatype, size = each.split()
            per_document = task == "rerank" and side == "output"
            optional = " optional: true" if side == "input" and name not in ("query", "documents") else ""
            size = "-1" if per_document else size
            lines.append(f'{side} {{ name: "{name}" data_type: TYPE_{datatype} dims: {size}{optional} }}')
    lines.append(f'parameters {{ key: "task" value {{ string_value: "{task}" }} }}')
    return "\n".join([*lines, ""])
