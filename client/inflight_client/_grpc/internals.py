"""The gRPC internals that the client uses. They may change in any version, hence the upper bound on grpcio."""

from __future__ import annotations

from typing import Any

from grpc._cython.cygrpc import OperationType

RECEIVE_MESSAGE = int(OperationType.receive_message)


def drain(call: Any, *ignored: int) -> None:
    """Consume the remaining events of an ended call; until then gRPC keeps the call and its connection.

    Events of the operations `ignored` are not waited for.
    """
    while call._state.due.difference(ignored):
        call._consume_next_event()
