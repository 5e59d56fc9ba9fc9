"""gRPC and `os.fork`: what a child process may do, as grpcio 1.85 was found to behave.

A child whose parent has used gRPC can't use it. Where the parent has a connection open, calls of an inherited one never
end, and break the parent's; those of a connection that the child makes itself never end either. Where the parent has
closed all, making one hangs once in a while on a busy machine, since threads of gRPC's that are still ending may hold
locks while the parent forks. GRPC_ENABLE_FORK_SUPPORT=1, which must be set before gRPC is imported, lets a child make
its own if no call is under way when the parent forks; else the child hangs, so that is left to whoever sets it.
"""

from __future__ import annotations

import os

from inflight_client.errors import InflightError

_used = False
"""Whether this process has made a channel."""
_used_by_parent = False
"""Whether the parent had when this process was forked."""


def channel_opening() -> None:
    """A transport makes its channel now. Raises InflightError `client_forked` where it might never work."""
    global _used
    if _used_by_parent:
        raise InflightError(
            "the process that this one was forked from has used gRPC, so that gRPC can't be used here; fork before the"
            " first call, start processes with multiprocessing's spawn, or use an http:// address",
            "client_forked",
        )
    _used = True


def check_process(process: int) -> None:
    """Raises InflightError `client_forked` unless this is the process in which a channel was made."""
    if process != os.getpid():
        raise InflightError(
            f"the client was used in process {process} and can't be in its child {os.getpid()}; make one in each"
            " process, after forking, or use an http:// address",
            "client_forked",
        )


def _after_fork_in_child() -> None:
    global _used, _used_by_parent
    if _used and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() not in ("1", "true", "yes"):
        _used_by_parent = True
    _used = False


os.register_at_fork(after_in_child=_after_fork_in_child)
