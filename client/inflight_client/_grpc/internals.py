"""What the client uses of gRPC's internals, which may change with any version: hence the upper bound on grpcio."""

from __future__ import annotations

from typing import Any

from grpc._cython.cygrpc import OperationType

RECEIVE_MESSAGE = int(OperationType.receive_message)


def drain(call: Any, *ignored: int) -> None:
    """Take the events that gRPC still has for a call that has ended; until then it keeps the call and its connection.

    `ignored` are the operations whose events need not be waited for.
    """
    while call._state.due.difference(ignored):
        call._consume_next_event()
