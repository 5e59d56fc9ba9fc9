"""The file to which an engine's model writes a line for each answer; see `inflight.runtime.triton.request_log`."""

from __future__ import annotations

import os
from pathlib import Path

from inflight.deploy.errors import DeployError
from inflight.deploy.repository.engine_set import AnyManifest

_VARIABLE = "INFLIGHT_REQUEST_LOG"


def request_log_environment(path: Path | None, manifest: AnyManifest) -> dict[str, str]:
    """Return the server's environment variable for the request log; empty without a path.

    `manifest` is that of the main engine. Raises DeployError `invalid_parameter` for a file that can't be written, and
    for encoders and TensorRT-LLM's C++ backend, which don't support it.
    """
    if path is None:
        return {}
    if manifest.task != "generate":
        raise DeployError(
            "--request-log is for an engine that generates text, and only encoders are served; leave it out.",
            "invalid_parameter",
        )
    if manifest.target == "tensorrt-llm":
        raise DeployError(
            "--request-log is not supported by TensorRT-LLM's C++ backend, in which this engine runs; leave it out.",
            "invalid_parameter",
        )
    try:
        # The same mode as in the engine's model: lines name tenants.
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
    except OSError as error:
        raise DeployError(
            f"--request-log {path} can't be written ({error.strerror}); name another file.", "invalid_parameter"
        ) from None
    return {_VARIABLE: str(path.absolute())}
