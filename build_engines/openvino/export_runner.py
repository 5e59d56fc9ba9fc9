"""Starts the export process, reads its messages and reports errors in one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import tempfile
from typing import Any, ClassVar, Protocol

from build_engines.errors import BuildError
from build_engines.progress import BuildProgress
from inflight.common.child_process import child_process, exit_reason, python_module

# With less free space than this, a failed write means a full disk; the libraries don't report the reason.
_DISK_FULL_BYTES = 1 << 20


class ExportTask(Protocol):
    """A dataclass with the settings of one export, in a module with the function `export` that does it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def checkpoint(self) -> str: ...

    @property
    def out(self) -> str: ...


def run_export(task: ExportTask, progress: BuildProgress) -> dict[str, Any]:
    """Run the export of `task` in a separate process, which always ends with this call; return its result's fields.

    Raises BuildError with the export's error about the checkpoint, `package_missing`, or `build_failed` with the path
    of the log, which is then kept. Raises OSError (ENOSPC) if the disk is full.
    """
    log = tempfile.NamedTemporaryFile(prefix="inflight-build-", suffix=".log", delete=False)  # noqa: SIM115
    keep = False
    try:
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        with child_process(python_module("build_engines.openvino.export_process"), log.file, environment) as child:
            answer = _converse(child, task, progress)
            code = child.wait()
        if "facts" in answer:
            return dict(answer["facts"])
        if "code" in answer:
            raise BuildError(answer["error"], answer["code"])
        if str(answer.get("failure")).startswith("ModuleNotFoundError"):
            raise BuildError(
                f"Compiling {task.checkpoint} needs packages of the extra build ({answer['failure']}); say pip install"
                " 'inflight[build]', or name a model for OpenVINO, which is served as it is.",
                "package_missing",
            )
        if answer.get("errno") == errno.ENOSPC or shutil.disk_usage(task.out).free < _DISK_FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        keep = True
        reason = answer.get("failure") or exit_reason(code)
        raise BuildError(f"Compiling {task.checkpoint} failed ({reason}); see {log.name}.", "build_failed")
    finally:
        log.close()
        if not keep:
            os.unlink(log.name)


def _converse(child: subprocess.Popen[str], task: ExportTask, progress: BuildProgress) -> dict[str, Any]:
    """Send the task and return the last answer, {} if the child died without one."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps([type(task).__module__, type(task).__name__, dataclasses.asdict(task)]))
        child.stdin.close()
    answer: dict[str, Any] = {}
    for line in child.stdout:
        answer = json.loads(line)
        if "step" in answer:
            progress.step(answer["step"])
    return {} if "step" in answer else answer
