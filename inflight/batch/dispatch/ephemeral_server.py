"""A server for one run of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import RunOptions
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server, ServerSettings

_MAX_RESTARTS = 20
"""Failed starts in a row: rows that kill engines are found by letting some die."""


def address_with_metrics(server: Server) -> str:
    """A server of ours as TritonBackend takes it, whatever its ports are."""
    return f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics"


@contextmanager
def ephemeral_server(options: RunOptions, on_message: Callable[[str], None]) -> Iterator[str]:
    """Serve `running.ephemeral` on free ports, with `ephemeral_options` as DeploymentOptions has them.

    Gives the address as TritonBackend takes it. What dies of the server is started again; nothing of it outlives this
    process. Raises BatchError with the code of what keeps the server from starting.
    """
    assert options.ephemeral is not None
    server = Server(
        options.ephemeral,
        DeploymentOptions(**options.ephemeral_options),
        ServerSettings(max_start_failures=_MAX_RESTARTS),
        on_message,
    )
    try:
        server.start()
    except Exception as error:
        code = getattr(error, "code", None)  # a DeployError, or a BuildError about the engine's directory
        if code is None:
            raise
        raise BatchError(str(error), code) from error
    try:
        yield address_with_metrics(server)
    finally:
        server.stop()
