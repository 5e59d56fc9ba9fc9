"""Ends a model's process when its server has gone."""

from __future__ import annotations

import os
import threading
import time

_PERIOD_S = 1.0


def end_with_server() -> None:
    """From now on this process ends soon after its parent, the server, however that ends.

    Triton's stub notices a dead server by itself, but a thread that was writing a metric then waits forever for the
    server's answer, and the stub for that thread.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), name="server-watch", daemon=True).start()


def _watch(server: int) -> None:
    while os.getppid() == server:
        time.sleep(_PERIOD_S)
    os._exit(1)
