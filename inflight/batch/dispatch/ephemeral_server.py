"""A temporary server for one run of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.job.spec import RunOptions

if TYPE_CHECKING:
    from inflight.deploy.server.server import Server

_MAX_RESTARTS = 20
"""Maximum consecutive failed starts; finding poison rows crashes engines on purpose."""


def address_with_metrics(server: Server) -> str:
    """Return the address of our own server with its metrics URL, as TritonBackend takes it."""
    return f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics"


@contextmanager
def ephemeral_server(options: RunOptions, on_message: Callable[[str], None]) -> Iterator[str]:
    """Serve `options.ephemeral` on free ports, with `ephemeral_options` as DeploymentOptions.

    Yields the address as TritonBackend takes it. Crashed processes of the server are restarted, and none outlives this
    process. Raises BatchError with the code of the error if the server does not start.
    """
    assert options.ephemeral is not None
    try:  # jobs on existing servers need no packages for serving
        from inflight.deploy.repository.configure import DeploymentOptions
        from inflight.deploy.server.server import Server, ServerSettings
    except ModuleNotFoundError as error:
        raise package_missing("--ephemeral", error, error.name or "", "serve") from error
    server = Server(
        options.ephemeral,
        DeploymentOptions(
            **{"itl_bound": 0.0, **options.ephemeral_options}
        ),  # a job's answers are not read as they come
        ServerSettings(max_start_failures=_MAX_RESTARTS),
        on_message,
    )
    try:
        server.start()
    except Exception as error:
        code = getattr(error, "code", None)  # a DeployError, or a BuildError about the engine directory
        if code is None:
            raise
        raise BatchError(str(error), code) from error
    try:
        yield address_with_metrics(server)
    finally:
        server.stop()
