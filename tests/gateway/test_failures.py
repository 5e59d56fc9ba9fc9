"""A defect of the gateway is an error with a request id, also in the middle of a stream, and tells nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from inflight.gateway.app import Gateway
from inflight.gateway.http import Request
from inflight.gateway.key_ring import Caller
from inflight.gateway.settings import GatewaySettings


@pytest.mark.parametrize("started", ["", "stream", "content"])
def test_a_defect_is_never_a_silent_end(tmp_path: Path, started: str, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def broken(request: Request, caller: Caller) -> None:
        if started == "stream":
            await request.start_stream()
            await request.write(b"data: {}\n\n")
        elif started:
            await request.start_content("text/plain", 100)
            await request.write(b"half")
        raise ZeroDivisionError("/secret/path.py")

    async def ask() -> None:
        gateway = Gateway(GatewaySettings(("127.0.0.1:1",), key_file=str(tmp_path / "keys.json")))
        gateway._routes["/broken"] = {"GET": broken}

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        headers = [(b"x-request-id", b"mine")]
        await gateway({"type": "http", "method": "GET", "path": "/broken", "headers": headers}, receive, send)
        await gateway.pool.close()

    if started == "content":
        with pytest.raises(ConnectionAbortedError):
            asyncio.run(ask())
        assert sent[-1]["more_body"]
        return
    asyncio.run(ask())
    assert sent[0]["status"] == (200 if started else 500)
    body = b"".join(message.get("body", b"") for message in sent)
    assert b"secret" not in body
    assert b"mine" in body
    assert not sent[-1].get("more_body")
    if started:
        *_, error, _ = body.split(b"\n\n")  # and no [DONE], which would end a whole answer
        assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "server_error"
    assert "ZeroDivisionError" in caplog.text


def test_at_the_end_of_the_drain_a_client_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    """The audit log closes then, and must have the request's line before."""

    async def stream(request: Request, caller: Caller) -> None:
        await request.start_stream()

    async def never(message: object = None) -> Any:
        await asyncio.Event().wait()

    async def ask() -> None:
        keys, log = str(tmp_path / "keys.json"), str(tmp_path / "audit.jsonl")
        gateway = Gateway(GatewaySettings(("127.0.0.1:1",), key_file=keys, audit=log))
        gateway._routes["/stream"] = {"GET": stream}
        task = asyncio.ensure_future(
            gateway({"type": "http", "method": "GET", "path": "/stream", "headers": []}, never, never)
        )
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait_for(task, 5)
        assert gateway._audit is not None
        gateway._audit.close()
        await gateway.pool.close()

    asyncio.run(ask())
    assert '"/stream"' in (tmp_path / "audit.jsonl").read_text()
