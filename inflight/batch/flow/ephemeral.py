"""A server for a job's life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inflight.batch.errors import BatchError
from inflight.batch.job import Running
from inflight.deploy.repository import DeploymentOptions
from inflight.deploy.server import Server, ServerSettings

_FAILURES = 20
"""Failed lives in a row: rows that kill engines are found by letting some die."""


def address_of(server: Server) -> str:
    """A server of ours as TritonBackend takes it, whatever its ports are."""
    return f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics"


@contextmanager
def ephemeral_server(running: Running, say: Callable[[str], None]) -> Iterator[str]:
    """Serve `running.ephemeral` on free ports, with `ephemeral_options` as DeploymentOptions has them.

    Gives the address as TritonBackend takes it. What dies of the server is started again; nothing of it outlives this
    process. Raises BatchError with the code of what keeps the server from starting.
    """
    assert running.ephemeral is not None
    server = Server(
        running.ephemeral, DeploymentOptions(**running.ephemeral_options), ServerSettings(failures=_FAILURES), say
    )
    try:
        server.start()
    except Exception as error:
        code = getattr(error, "code", None)  # a DeployError, or a BuildError about the engine's directory
        if code is None:
            raise
        raise BatchError(str(error), code) from error
    try:
        yield address_of(server)
    finally:
        server.stop()
