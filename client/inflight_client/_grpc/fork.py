"""gRPC and `os.fork`: what works in a child process, as observed with grpcio 1.85.

A child can't use gRPC if its parent has used it. If the parent has an open connection, calls over an inherited one hang
and break the parent's; calls over a new connection hang too. If the parent has closed all connections, creating one
sometimes hangs on a busy machine, since ending gRPC threads may hold locks while the parent forks.
GRPC_ENABLE_FORK_SUPPORT=1, set before gRPC is imported, lets a child connect if no call is in flight when the parent
forks; otherwise the child hangs, so users enable it at their own risk.
"""

from __future__ import annotations

import os

from inflight_client.errors import InflightError

_used = False
"""Whether this process has created a channel."""
_used_by_parent = False
"""Whether the parent had created one when it forked this process."""


def channel_opening() -> None:
    """Record that a channel is created. Raises InflightError `client_forked` if it might hang."""
    global _used
    if _used_by_parent:
        raise InflightError(
            "gRPC can't be used in this process, since its parent used gRPC before it forked; fork before the first"
            " call, start processes with multiprocessing's spawn, or use an http:// address",
            "client_forked",
        )
    _used = True


def check_process(process: int) -> None:
    """Raise InflightError `client_forked` unless this is the process that created the channel."""
    if process != os.getpid():
        raise InflightError(
            f"the client was created in process {process} and can't be used in its child {os.getpid()}; create one in"
            " each process, after forking, or use an http:// address",
            "client_forked",
        )


def _after_fork_in_child() -> None:
    global _used, _used_by_parent
    if _used and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() not in ("1", "true", "yes"):
        _used_by_parent = True
    _used = False


os.register_at_fork(after_in_child=_after_fork_in_child)
