"""Errors of preparing, starting and watching a server."""

from __future__ import annotations

import errno
import os


class DeployError(Exception):
    """One sentence that names the input, the problem and the next step, with a stable `code`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ServerCrashError(DeployError):
    """tritonserver crashed before it generated a token, possibly because of a request: a retry may succeed."""


class ServerHangError(DeployError):
    """tritonserver hung before it generated a token: a retry may succeed."""


def invalid(sentence: str) -> DeployError:
    """Return the error for what a user has given."""
    return DeployError(sentence, "invalid_parameter")


def system_error(error: Exception) -> DeployError:
    """Convert an OSError or memory error of a server start to a DeployError."""
    # shutil.copytree combines errors into one without an errno.
    full = isinstance(error, OSError) and (error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error))
    return DeployError(
        f"The machine lacks a resource that the server needs to start: {error}; check its disk space, memory,"
        " processes and open files.",
        "disk_full" if full else "server_start_failed",
    )
