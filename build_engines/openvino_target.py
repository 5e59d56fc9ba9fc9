"""The OpenVINO target: starts the exporting process, listens to it, and puts what went wrong into one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from build_engines.errors import BuildError
from build_engines.manifest import KvPrecision, Precision
from build_engines.openvino_export import ExportTask, Facts
from build_engines.progress import Progress

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "optimum-intel", "transformers", "torch", "nncf")
_HINTS = {"fp32": "f32", "fp16": "f16"}
# Bytes of a parameter on disk while building; integer weights stand beside the bf16 ones for a while.
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 3.1, "int4": 2.8}
# What is left of a disk where writing failed for want of space; the libraries don't pass the reason on.
_NEARLY_NOTHING = 1 << 20


def default_kv_precision(precision: Precision) -> KvPrecision:
    """8 bits as OpenVINO does by default; exact where the weights are."""
    return "f32" if precision == "fp32" else "u8"


def engine_properties(precision: Precision, kv_precision: KvPrecision) -> dict[str, Any]:
    """What ContinuousBatchingPipeline is given; integer weights are multiplied in bf16."""
    return {"INFERENCE_PRECISION_HINT": _HINTS.get(precision, "bf16"), "KV_CACHE_PRECISION": kv_precision}


def bytes_needed(parameters: int, precision: Precision) -> int:
    """Disk space that a build takes at its peak, without the few megabytes beside the weights."""
    return int(parameters * _BYTES[precision])


def compile_checkpoint(task: ExportTask, progress: Progress) -> Facts:
    """Run the export in a process of its own, which ends when this call does, however that is.

    Raises BuildError: what the export found wrong with the checkpoint, `disk_full`, or `build_failed` with the
    path of a log that is then kept.
    """
    log = tempfile.NamedTemporaryFile(prefix="inflight-build-", suffix=".log", delete=False)  # noqa: SIM115
    keep = False
    try:
        with _child(log.file) as child:
            answer = _converse(child, task, progress)
        if "facts" in answer:
            return Facts(**answer["facts"])
        if "code" in answer:
            raise BuildError(answer["error"], answer["code"])
        if answer.get("errno") == errno.ENOSPC or shutil.disk_usage(task.out).free < _NEARLY_NOTHING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        keep = True
        reason = answer.get("failure") or _ending(child.returncode)
        raise BuildError(f"Compiling {task.checkpoint} failed ({reason}); see {log.name}.", "build_failed")
    finally:
        log.close()
        if not keep:
            os.unlink(log.name)


@contextlib.contextmanager
def _child(log: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    # A session of its own: Ctrl-C reaches this process alone, which then ends the child and what that started.
    child = subprocess.Popen(
        [sys.executable, "-m", "build_engines.openvino_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        start_new_session=True,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    )
    try:
        yield child
        child.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _converse(child: subprocess.Popen[str], task: ExportTask, progress: Progress) -> dict[str, Any]:
    """Send the task and return the last answer, {} if the child died without one."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(dataclasses.asdict(task)))
        child.stdin.close()
    answer: dict[str, Any] = {}
    for line in child.stdout:
        answer = json.loads(line)
        if "step" in answer:
            progress.step(answer["step"])
    return {} if "step" in answer else answer


def _ending(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, most likely because memory ran out"
    return f"its process ended with {code}"
