"""Ray as jobs need it: a cluster that is there, or one of this machine's own, that nobody else can reach."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inflight.batch.errors import BatchError

_MEMORY = 128 << 20
"""Of Ray's store of objects. Jobs hand nothing on by it but which part is done."""
_ALONE = {
    # Only then do Ray's own processes listen on loopback alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_enable_metrics_collection": "0",
}
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """The module `ray`, connected: to RAY_ADDRESS, or else to one that lives as long as this. Raises BatchError.

    It tells nobody of its use, and shows no page.
    """
    elsewhere = os.environ.get("RAY_ADDRESS")
    os.environ.update({**_QUIET, **({} if elsewhere else _ALONE)})
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise BatchError(
            f"--runner ray takes the package ray ({error}); install inflight with its extra [ray]", "package_missing"
        ) from None
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
    with tempfile.TemporaryDirectory(prefix="inflight-ray-", ignore_cleanup_errors=True) as place:
        try:
            if elsewhere:
                ray.init(**quiet)
            else:
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    object_store_memory=_MEMORY,
                    _temp_dir=place,
                    **quiet,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BatchError(f"no cluster of Ray could be had: {error}", "job_failed") from None
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            yield ray
        finally:
            ray.shutdown()
