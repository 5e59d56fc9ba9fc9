"""A real Triton that serves scripted encoders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from inflight_client.encoder_call import MODELS, Task
from tritonclient.grpc import model_config_pb2

from inflight.deploy.server.run_directory import ServerRunDirectory
from tests.standins.triton import serve_repository

MODEL = Path(__file__).parent / "model.py"
MAX_SEQ_LEN, DIMENSIONS = 32, 8
_TEXT = ("text_input", "TYPE_STRING", [1], True)
_IDS = (("input_ids", "TYPE_INT32", [-1], True), ("input_lengths", "TYPE_INT32", [1], True))
_OPTIONS = (("truncate", "TYPE_BOOL", [1], True), ("priority", "TYPE_INT32", [1], True))
_INPUTS = {
    "embed": (
        _TEXT,
        *_IDS,
        *_OPTIONS,
        ("input_type", "TYPE_STRING", [1], True),
        ("dimensions", "TYPE_INT32", [1], True),
    ),
    "rerank": (("query", "TYPE_STRING", [1], False), ("documents", "TYPE_STRING", [-1], False), *_OPTIONS),
    "classify": (_TEXT, *_IDS, *_OPTIONS),
}
_OUTPUTS = {
    "embed": (("embedding", "TYPE_FP32", [-1]),),
    "rerank": (("scores", "TYPE_FP32", [-1]),),
    "classify": (("scores", "TYPE_FP32", [-1]), ("labels", "TYPE_STRING", [-1])),
}


@contextmanager
def scripted_encoders(**models: str) -> Iterator[str]:
    """Serve an encoder for each task, under the model name given for it; yields the server's address for gRPC."""
    run = ServerRunDirectory.create()
    try:
        for task in MODELS:
            if task in models:
                write_encoder(run.path / "repository" / MODELS[task], task, models[task])
        with serve_repository(run, "scripted") as ports:
            yield f"127.0.0.1:{ports.grpc}"
    finally:
        run.close()


def write_encoder(folder: Path, task: Task, name: str, code: Path = MODEL) -> None:
    """Write the model for a task, which runs `code`."""
    size = -1 if task == "rerank" else 1
    facts = (
        ("num_input_tokens", "TYPE_INT32", [size]),
        ("truncated", "TYPE_BOOL", [size]),
        ("error", "TYPE_STRING", [size]),
    )
    served = {"model": name, "task": task, "max_seq_len": MAX_SEQ_LEN, "dimensions": DIMENSIONS}
    said: dict[str, Any] = {
        "name": folder.name,
        "backend": "python",
        "max_batch_size": 0 if task == "rerank" else 256,
        "input": [
            {"name": n, "data_type": kind, "dims": dims, "optional": free} for n, kind, dims, free in _INPUTS[task]
        ],
        "output": [{"name": n, "data_type": kind, "dims": dims} for n, kind, dims in (*_OUTPUTS[task], *facts)],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "parameters": {"inflight_served": {"string_value": json.dumps(served)}},
    }
    config = json_format.ParseDict(said, model_config_pb2.ModelConfig())
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    shutil.copy(code, folder / "1" / "model.py")
