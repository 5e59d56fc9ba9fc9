"""What calls may leave behind, looked for: requests on the server; threads and sockets in this process; tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from inflight.deploy.server.server import Server
from tests.serving.metrics_page import MetricsPage, page_when

SOON = 30.0
"""Seconds within which what a call held has been given back, on a slow and busy machine too."""

_ = np.__version__  # its threads come with its import, and stay

# gRPC's own pools: they begin with the first channel of a process, and live, and grow and shrink, as long as it does.
_POOLS = ("event_engine", "grpc_", "default-execut", "resolver-execut", "timer_manager", "lifeguard")


class HeldResources(NamedTuple):
    """What this process holds: threads of Python, further ones by their kernel's id, and sockets."""

    threads: frozenset[threading.Thread]
    native: frozenset[str]
    sockets: frozenset[str]


def held_resources() -> HeldResources:
    """Threads and sockets of this process, without those of gRPC's pools."""
    threads = frozenset(threading.enumerate())
    known = {str(thread.native_id) for thread in threads}
    native = {task for task in os.listdir("/proc/self/task") if task not in known and not _of_a_pool(task)}
    return HeldResources(threads, frozenset(native), frozenset(open_files("socket:")))


@contextmanager
def nothing_left(*servers: Server) -> Iterator[None]:
    """What is done inside leaves no thread and no socket here, and no request on these servers.

    Each of them gets SOON to go; whatever is there before may stay. What comes later is not counted: the session's
    servers are watched by threads of this process, with separate connections.
    """
    before = held_resources()
    yield
    end = time.monotonic() + SOON
    left = more_than(before)
    while any(left):
        assert time.monotonic() < end, f"this is left behind: {left}, of {psutil.Process().net_connections('all')}"
        time.sleep(0.02)
        now = more_than(before)
        left = HeldResources(left.threads & now.threads, left.native & now.native, left.sockets & now.sockets)
    for server in servers:
        page_when(server, idle)


def idle(page: MetricsPage) -> bool:
    """Nothing runs and nothing waits: neither in the engine nor at Triton's door."""
    return page.quiet and not any(page.family("nv_inference_pending_request_count").values())


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """As asyncio.run; afterwards no task is left but those that are done within SOON."""

    async def watched() -> Any:
        before = asyncio.all_tasks()
        try:
            return await work()
        finally:
            await no_task_left(before)

    return asyncio.run(watched())


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine, as `run` runs it."""

    @wraps(test)
    def in_a_loop(*fixtures: Any, **named: Any) -> None:
        run(lambda: test(*fixtures, **named))

    return in_a_loop


async def no_task_left(before: set[asyncio.Task[Any]]) -> None:
    """Wait until no task runs but this one and those that were there before."""
    before = before | {task for task in [asyncio.current_task()] if task}
    end = time.monotonic() + SOON
    while left := asyncio.all_tasks() - before:
        assert time.monotonic() < end, f"these tasks run on: {left}"
        await asyncio.sleep(0.01)


def more_than(before: HeldResources) -> HeldResources:
    """What is held now and was not then; what only waits for the garbage collector does not count."""
    now = held_resources()
    if now != before:
        gc.collect()
        now = held_resources()
    return HeldResources(now.threads - before.threads, now.native - before.native, now.sockets - before.sockets)


def _of_a_pool(task: str) -> bool:
    try:
        with open(f"/proc/self/task/{task}/comm") as name:
            return name.read().startswith(_POOLS)
    except OSError:
        return True  # it has ended


def open_files(start: Path | str) -> list[str]:
    """What the open files of this process are whose names begin so, like "socket:" or a directory."""
    return [target for target in _targets() if target.startswith(str(start))]


def _targets() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed
            yield os.readlink(f"/proc/self/fd/{number}")
