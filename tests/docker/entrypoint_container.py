"""What an image does at its start, without docker: in separate namespaces, as a container has them.

There the script is process 1, the root file system can't be written, and /dev/shm, /tmp and INFLIGHT_RUN_DIR are file
systems as they are asked for. What this leaves out of a container is its other root, its user and its network.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fixtures.engines import ROOT

ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
HEALTH = ROOT / "docker" / "health.py"
_SETUP = """
set -e
mount -t tmpfs -o "size=$SHM_SIZE" tmpfs /dev/shm
mount --bind /tmp /tmp
mount -o "remount,bind,$TMP_MODE" /tmp
mount -t tmpfs -o "$RUN_OPTIONS" tmpfs "$INFLIGHT_RUN_DIR"
mount -o remount,bind,ro /
exec "$@"
"""


@functools.cache
def _unshare() -> list[str]:
    """How this user may make namespaces; the test is skipped if in no way."""
    for mapped in ([], ["--map-root-user"]):
        command = ["unshare", *mapped, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        try:
            if (
                subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True).returncode
                == 0
            ):
                return command
        except FileNotFoundError:
            break
    pytest.skip("no namespaces can be made here (unshare)")


def contained(
    *arguments: str, shm_size: str = "300m", run_options: str = "mode=1777", tmp_mode: str = "rw"
) -> list[str]:
    """The command line of docker/entrypoint.sh with `arguments`, in namespaces."""
    variables = [f"SHM_SIZE={shm_size}", f"RUN_OPTIONS={run_options}", f"TMP_MODE={tmp_mode}"]
    return [*_unshare(), "env", *variables, "sh", "-c", _SETUP, "container", str(ENTRYPOINT), *arguments]


def environment(home: Path, **variables: str) -> dict[str, str]:
    """That of an image as docs/docker.md starts it: programs of ours first on PATH, and where to write."""
    home.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("INFLIGHT_")}
    return {
        **own,
        "PATH": path,
        "HOME": str(home),
        "INFLIGHT_RUN_DIR": str(home),
        "INFLIGHT_SERVE_BEHIND_PROXY": "1",
    } | variables


class StartedContainer:
    """A started one: the first line it says, and its process 1 as it is seen from outside."""

    def __init__(self, engine: Path, home: Path, *arguments: str, **variables: str) -> None:
        ports = {f"INFLIGHT_SERVE_{name}PORT": "0" for name in ("", "HTTP_", "GRPC_", "METRICS_")}
        self.outer = subprocess.Popen(
            contained(*arguments),
            env=environment(home, INFLIGHT_ENGINE=str(engine), **ports, **variables),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.outer.stdout is not None
        line = self.outer.stdout.readline()
        assert line, self.outer.communicate()[1]
        self.announcement: dict[str, Any] = json.loads(line)
        (self.first,) = psutil.Process(self.outer.pid).children()

    @property
    def http_port(self) -> str:
        return str(self.announcement["http"].rpartition(":")[2])

    def end(self) -> None:
        if self.outer.poll() is None:
            self.outer.kill()
        self.outer.communicate()


def health(port: str, seconds: float = 10.0, **variables: str) -> subprocess.CompletedProcess[str]:
    """What the image's health check says."""
    return subprocess.run(
        [sys.executable, str(HEALTH), "--seconds", str(seconds)],
        env={**os.environ, "INFLIGHT_SERVE_HOST": "0.0.0.0", "INFLIGHT_SERVE_HTTP_PORT": port, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
