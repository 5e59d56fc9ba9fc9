"""gRPC and `os.fork`: what a child process may do, as grpcio 1.85 was found to behave.

A child whose parent has a gRPC connection open when it forks can't use gRPC: calls of an inherited connection never
end, and break the parent's; those of a connection that the child makes itself never end either. Where the parent has
none open, because it has made none yet or closed them all, the child may make its own. GRPC_ENABLE_FORK_SUPPORT=1,
which must be set before gRPC is imported, lets a child make its own although the parent's is open, if no call is under
way when it forks; else the child hangs, so that is left to whoever sets it.
"""

from __future__ import annotations

import os
import weakref

from inflight_client.errors import InflightError

_open_transports: weakref.WeakSet[object] = weakref.WeakSet()
"""The transports of this process that have a channel."""
_parent_had_channel = False
"""Whether the parent had one when this process was forked."""


def channel_opening(transport: object) -> None:
    """A transport makes its channel now. Raises InflightError `client_forked` where it would never work."""
    if _parent_had_channel:
        raise InflightError(
            "the process that this one was forked of had a gRPC connection open, so that gRPC can't be used here; close"
            " clients before forking, start processes with multiprocessing's spawn, or use an http:// address",
            "client_forked",
        )
    _open_transports.add(transport)


def channel_closed(transport: object) -> None:
    """A transport has closed its channel."""
    _open_transports.discard(transport)


def check_process(process: int) -> None:
    """Raises InflightError `client_forked` unless this is the process in which a channel was made."""
    if process != os.getpid():
        raise InflightError(
            f"the client was used in process {process} and can't be in its child {os.getpid()}; make one in each"
            " process, after forking, or use an http:// address",
            "client_forked",
        )


def _after_fork_in_child() -> None:
    global _parent_had_channel
    if len(_open_transports) and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() not in ("1", "true", "yes"):
        _parent_had_channel = True
    _open_transports.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
