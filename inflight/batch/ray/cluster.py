"""Connects to Ray: an existing cluster, or a private one on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.signals import STOP_SIGNALS

_PREFIX = "inflight-ray-"
_MEMORY = 128 << 20
"""Size of Ray's object store. Jobs only use it to report which part is done."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # otherwise each start of a worker is logged as an error
}


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Yield the module `ray`, connected to RAY_ADDRESS, or to a cluster for this context. Raises BatchError.

    To be called in the main thread, whose signal handlers stay as they are. Ray's usage statistics and dashboard are
    off.
    """
    elsewhere = os.environ.get("RAY_ADDRESS")
    os.environ.update({**_QUIET, **({} if elsewhere else _alone())})
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise package_missing("--runner ray", error, "ray", "ray") from None
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
    _clear()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as place:
        handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        try:
            if elsewhere:
                ray.init(job_config=_job_config(ray), **quiet)
            else:
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    object_store_memory=_MEMORY,
                    _temp_dir=place,
                    job_config=_job_config(ray),
                    **quiet,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BatchError(f"no Ray cluster is available: {error}", "job_failed") from None
        for number, handler in handlers.items():  # Ray installs its own SIGTERM handler, which ends the process
            signal.signal(number, handler)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            yield ray
        finally:
            ray.shutdown()


class _NoPaths(list[str]):
    def extend(self, paths: Iterable[str]) -> None:
        """Ignore the path that Ray adds: the current directory, where its workers would look for modules first."""


def _job_config(ray: Any) -> Any:
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _NoPaths()  # Ray has no public option for this
    return config


def _alone() -> dict[str, str]:
    """Return the environment that makes a private cluster unreachable for others."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # only then do all of Ray's processes listen on loopback only
        "RAY_enable_metrics_collection": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray writes a token to the home directory
    }


def _clear() -> None:
    """Remove files of killed head processes on this machine."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(path, ignore_errors=True)
