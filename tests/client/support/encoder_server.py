"""A real Triton with the scripted models `embedding`, `rerank` and `classify` (scripted_encoder.py), and `whisper`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from inflight_client.encoder_call import Task

from inflight.deploy.server.run_directory import ServerRunDirectory
from tests.client.support import scripted_encoder, scripted_whisper
from tests.standins.triton import serve_repository

MAX_SEQ_LEN = 64
_NAMES: Mapping[Task, str] = {task: task for task in ("embed", "rerank", "classify", "transcribe", "text2text")}

_COMMON = {
    "inputs": ("truncate BOOL 1", "priority INT32 1", "deadline_ms INT32 1"),
    "outputs": ("num_input_tokens INT32 1", "truncated BOOL 1", "error STRING 1"),
}
_CLIPS = {"inputs": ("priority INT32 1", "deadline_ms INT32 1"), "outputs": ("error STRING 1",)}
_TEXTS = ("text_input STRING 1", "input_ids INT32 -1", "input_lengths INT32 1")
_MODELS: dict[str, tuple[Task, tuple[str, ...], tuple[str, ...]]] = {
    "embedding": ("embed", (*_TEXTS, "input_type STRING 1", "dimensions INT32 1"), ("embedding FP32 -1",)),
    "classify": ("classify", _TEXTS, ("scores FP32 -1", "logits FP32 -1", "labels STRING -1")),
    "whisper": (
        "transcribe",
        (
            *("WAV FP32 -1", "WAV_LENS INT32 1", "TEXT_PREFIX STRING 1"),
            *("beam_width INT32 1", "temperature FP32 1", "word_timestamps BOOL 1"),
        ),
        ("TRANSCRIPTS STRING 1", "SEGMENTS STRING 1", "language STRING 1"),
    ),
    "text2text": (
        "text2text",
        (
            *("text_input STRING 1", "target_prefix STRING 1", "source_language STRING 1"),
            *("beam_width INT32 1", "length_penalty FP32 1", "repetition_penalty FP32 1", "max_tokens INT32 1"),
        ),
        ("text_output STRING 1", "num_output_tokens INT32 1", "finish_reason STRING 1"),
    ),
    "rerank": ("rerank", ("query STRING 1", "documents STRING -1"), ("scores FP32 -1", "logits FP32 -1")),
}


class EncoderServer(NamedTuple):
    grpc_address: str
    http_address: str
    metrics_address: str


@contextmanager
def encoder_server(names: Mapping[Task, str] = _NAMES) -> Iterator[EncoderServer]:
    """Start the server; `names` are those of its models for applications, for some tasks or for all."""
    run = ServerRunDirectory.create()
    try:
        for model, (task, _, _) in _MODELS.items():
            if task in names:
                directory = run.path / "repository" / model
                (directory / "1").mkdir(parents=True)
                (directory / "config.pbtxt").write_text(_config(model, names[task]))
                script = scripted_whisper if task == "transcribe" else scripted_encoder
                shutil.copy(str(script.__file__), directory / "1" / "model.py")
        with serve_repository(run, "key") as ports:
            yield EncoderServer(*(f"127.0.0.1:{port}" for port in (ports.grpc, ports.http, ports.metrics)))
    finally:
        run.close()


def _config(model: str, served_name: str) -> str:
    task, inputs, outputs = _MODELS[model]
    lines = [f'name: "{model}"', 'backend: "python"', f"max_batch_size: {0 if task == 'rerank' else 256}"]
    for side, own in (("input", inputs), ("output", outputs)):
        for each in (*own, *(_CLIPS if task == "transcribe" else _COMMON)[f"{side}s"]):
            name, datatype, size = each.split()
            per_document = task == "rerank" and side == "output"
            optional = " optional: true" if side == "input" and name not in ("query", "documents", "WAV") else ""
            size = "-1" if per_document else size
            lines.append(f'{side} {{ name: "{name}" data_type: TYPE_{datatype} dims: {size}{optional} }}')
    sizes = {"dimensions": scripted_encoder.DIMENSIONS, "max_seq_len": MAX_SEQ_LEN}
    served = json.dumps({"model": served_name, "task": task, **sizes})
    lines.append(f'parameters {{ key: "inflight_served" value {{ string_value: {json.dumps(served)} }} }}')
    return "\n".join([*lines, ""])
