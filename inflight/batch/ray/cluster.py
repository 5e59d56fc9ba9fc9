"""Ray as jobs need it: a cluster that is there, or one of this machine's own, that nobody else can reach."""

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

from inflight.batch.errors import BatchError
from inflight.batch.signals import STOP_SIGNALS

_PREFIX = "inflight-ray-"
_MEMORY = 128 << 20
"""Of Ray's store of objects. Jobs hand nothing on by it but which part is done."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # else each start of a worker is told as an error of its constructor's arguments
}


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """The module `ray`, connected: to RAY_ADDRESS, or else to one that lasts as long as this. Raises BatchError.

    For the main thread, whose signals stay as they are. It tells nobody of its use, and shows no page.
    """
    elsewhere = os.environ.get("RAY_ADDRESS")
    os.environ.update({**_QUIET, **({} if elsewhere else _alone())})
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise BatchError(
            f"--runner ray takes the package ray ({error}); install inflight with its extra [ray]", "package_missing"
        ) from None
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
            raise BatchError(f"no cluster of Ray could be had: {error}", "job_failed") from None
        for number, handler in handlers.items():  # Ray takes SIGTERM for itself, and ends the process
            signal.signal(number, handler)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            yield ray
        finally:
            ray.shutdown()


class _NoPaths(list[str]):
    def extend(self, paths: Iterable[str]) -> None:
        """Leave out what Ray adds: the current directory, in which its workers would look for modules first."""


def _job_config(ray: Any) -> Any:
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _NoPaths()  # Ray has no public option for it
    return config


def _alone() -> dict[str, str]:
    """What keeps everybody else from a cluster of the job's own."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # only then do all of Ray's processes listen on loopback alone
        "RAY_enable_metrics_collection": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else Ray writes one into the home directory
    }


def _clear() -> None:
    """Remove what heads of this machine left that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(path, ignore_errors=True)
