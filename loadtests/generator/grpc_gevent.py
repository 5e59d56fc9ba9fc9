"""gRPC among greenlets."""

from __future__ import annotations

import gevent
import grpc.experimental.gevent as grpc_gevent

_MOST_THREADS = 100_000


def init_grpc() -> None:
    """Have gRPC's calls let other greenlets run while they wait; to be called before the first channel is made.

    Each call waits for its next event in a native thread of gevent's pool. That pool has ten unless told otherwise, and
    of more streams than that some would hear of their tokens only when another stream had heard of one of its own:
    late by as much as the server's gaps between tokens, while no event loop was. So it may have as many as it takes;
    they are made when they are needed.
    """
    grpc_gevent.init_gevent()
    gevent.get_hub().threadpool.maxsize = _MOST_THREADS
