"""The OpenVINO target: starts the export process, reads its messages and reports errors in one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from build_engines.checkpoints.checkpoint import Checkpoint, check_buildable
from build_engines.errors import BuildError
from build_engines.manifest import GpuKvPrecision, GpuPrecision, KvPrecision, Precision, SuitedTo
from build_engines.openvino.export import ExportResult, ExportTask
from build_engines.openvino.properties import compute_properties
from build_engines.processor import PrecisionChoice, choose_precision, find_processor
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CompiledEngine, Host

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "optimum-intel", "transformers", "torch", "nncf")
# Peak bytes per parameter on disk during a build; integer weights and bf16 weights exist at the same time.
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 3.1, "int4": 2.8}
# With less free space than this, a failed write means a full disk; the libraries don't report the reason.
_DISK_FULL_BYTES = 1 << 20


@dataclass(frozen=True)
class OpenVinoTarget:
    """The target `openvino`: an engine for this machine's CPU."""

    precision: Precision | GpuPrecision
    kv_precision: KvPrecision | GpuKvPrecision
    max_seq_len: int | None
    smoke_test: bool
    choice: PrecisionChoice | None = None

    @property
    def properties(self) -> dict[str, Any]:
        """The properties for ContinuousBatchingPipeline."""
        return {**compute_properties(self.precision), "KV_CACHE_PRECISION": self.kv_precision}

    @property
    def suited_to(self) -> SuitedTo | None:
        if self.choice is None:
            return None
        return SuitedTo(processor=str(find_processor()), reason=self.choice.reason, alternative=self.choice.alternative)

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        check_buildable(directory, config)

    def cache_key(self) -> list[Any]:
        return [self.precision, self.max_seq_len, self.properties]

    def host(self) -> Host:
        found = {}
        for package in PACKAGES:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return Host(found)

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        return int(checkpoint.parameters * _BYTES[self.precision])

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEngine:
        task = ExportTask(
            checkpoint=str(checkpoint.directory),
            out=str(out),
            precision=self.precision,
            max_seq_len=self.max_seq_len,
            properties=self.properties,
            smoke_test=self.smoke_test,
        )
        if self.choice is not None:
            progress.step(f"Weights in {self.precision}: {self.choice.reason}; {self.choice.alternative}")
        facts = dataclasses.asdict(compile_checkpoint(task, progress))
        return CompiledEngine(
            precision=self.precision,
            kv_cache_precision=self.kv_precision,
            properties=self.properties,
            suited_to=self.suited_to,
            **facts | {"notes": tuple(facts["notes"])},
        )


def target(options: BuildOptions) -> OpenVinoTarget:
    """Return the target for `options`. Defaults: weights that suit the processor, and a u8 KV cache, f32 for fp32
    weights."""
    choice = None if options.precision else choose_precision(find_processor())
    precision = options.precision or choose_precision(find_processor()).precision
    kv_precision = options.kv_precision or ("f32" if precision == "fp32" else "u8")
    return OpenVinoTarget(precision, kv_precision, options.max_seq_len, options.smoke_test, choice)


def compile_checkpoint(task: ExportTask, progress: BuildProgress) -> ExportResult:
    """Run the export in a separate process, which always ends with this call.

    Raises BuildError with the export's error about the checkpoint, or `build_failed` with the path of the log, which is
    then kept. Raises OSError (ENOSPC) if the disk is full.
    """
    log = tempfile.NamedTemporaryFile(prefix="inflight-build-", suffix=".log", delete=False)  # noqa: SIM115
    keep = False
    try:
        with _child(log.file) as child:
            answer = _converse(child, task, progress)
        if "facts" in answer:
            return ExportResult(**answer["facts"])
        if "code" in answer:
            raise BuildError(answer["error"], answer["code"])
        if answer.get("errno") == errno.ENOSPC or shutil.disk_usage(task.out).free < _DISK_FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        keep = True
        reason = answer.get("failure") or _exit_reason(child.returncode)
        raise BuildError(f"Compiling {task.checkpoint} failed ({reason}); see {log.name}.", "build_failed")
    finally:
        log.close()
        if not keep:
            os.unlink(log.name)


@contextlib.contextmanager
def _child(log: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    # A new session: Ctrl-C reaches only this process, which then kills the child's process group.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "build_engines.openvino.export_process"],
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


def _converse(child: subprocess.Popen[str], task: ExportTask, progress: BuildProgress) -> dict[str, Any]:
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


def _exit_reason(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, most likely because memory ran out"
    return f"its process exited with {code}"
