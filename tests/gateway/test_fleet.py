"""What a process of the gateway says of models that are loaded when a request names them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from inflight.gateway.fleet import Fleet
from inflight.gateway.http import BodyMemory, Request


def request() -> Request:
    async def receive() -> Any:
        await asyncio.Event().wait()

    return Request({"method": "POST", "path": "/", "headers": []}, receive, None, "id", 1, BodyMemory(1))  # type: ignore[arg-type]


def test_requests_that_share_a_hold_are_told_once_a_second(tmp_path_factory: Any) -> None:
    path = str(tmp_path_factory.mktemp("f") / "s")
    said: list[dict[str, Any]] = []
    done = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        model = {"name": "tea", "state": "loaded", "draining": False}
        writer.write(json.dumps({"models": [model], "memory": 1}).encode() + b"\n")
        while line := await reader.readline():
            said.append(json.loads(line))
            if "use" in said[-1]:
                writer.write(json.dumps({"request": said[-1]["use"], "state": "loaded"}).encode() + b"\n")
            if "done" in said[-1]:
                done.set()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_unix_server(talk, path)
        fleet = Fleet(path, 10, lambda: None)
        task = asyncio.create_task(fleet.run())
        await fleet.known.wait()
        open_ones = [request() for _ in range(20)]
        for each in open_ones:
            await fleet.hold("tea", each, 5, None)
        for each in open_ones:
            each.close()
        await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert said == [{"use": 1, "model": "tea"}, {"used": "tea"}, {"done": 1}]
