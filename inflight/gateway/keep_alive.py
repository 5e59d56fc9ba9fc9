"""Comments in a stream that has nothing else to say, so that no proxy ends it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from inflight.gateway.http import DisconnectedError, Request
from inflight.openai_api.frames import KEEP_ALIVE

_CHECKS_PER_KEEP_ALIVE = 4


async def keep_alive(request: Request, seconds: float) -> None:
    """Write a comment whenever nothing was written for so long."""
    seen, silent = request.frames, 0
    while True:
        await asyncio.sleep(seconds / _CHECKS_PER_KEEP_ALIVE)
        silent = silent + 1 if request.frames == seen else 0
        if silent == _CHECKS_PER_KEEP_ALIVE - 1:
            with suppress(DisconnectedError):  # the connection is closed then
                await request.write(KEEP_ALIVE)
            silent = 0
        seen = request.frames
