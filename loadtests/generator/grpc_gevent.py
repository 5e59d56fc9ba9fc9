"""Makes gRPC cooperate with gevent."""

from __future__ import annotations

import gevent
import grpc.experimental.gevent as grpc_gevent

_MOST_THREADS = 100_000


def init_grpc() -> None:
    """Let gRPC calls yield to other greenlets while they wait. Call this before the first channel is created.

    Each call waits for its next event in a native thread of gevent's pool, which has ten threads by default. With more
    streams than threads, some would receive their tokens only after another stream had received one: late by as much as
    the server's gaps between tokens, while no event loop was delayed. So the pool has no practical limit; threads are
    created when they are needed.
    """
    grpc_gevent.init_gevent()
    gevent.get_hub().threadpool.maxsize = _MOST_THREADS
