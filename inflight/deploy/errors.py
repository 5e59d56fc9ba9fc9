"""What goes wrong while serving is prepared, started or watched."""

from __future__ import annotations

import errno
import os


class DeployError(Exception):
    """One sentence that names the input, says what is wrong and what to do, with a stable `code`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ServerCrashError(DeployError):
    """tritonserver crashed before it had generated a token, which a request may have caused: worth another try."""


class ServerHangError(DeployError):
    """tritonserver hung before it had generated a token, so it is worth another try."""


def system_error(error: Exception) -> DeployError:
    """What the machine refused while a server was started (a process, a file, memory), as a sentence."""
    # shutil.copytree gathers errors into one without an errno.
    full = isinstance(error, OSError) and (error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error))
    return DeployError(
        f"The machine refuses what the server's start needs: {error}; look at its disk space, memory, processes and"
        " open files.",
        "disk_full" if full else "server_start_failed",
    )
