"""Requests to a gateway without a client's own checks."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.gateway.processes import GatewayProcesses

TIMEOUT = 60
MODEL = "tiny-llama"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, whose four fields are always there."""
        (error,) = self.json.values()
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str)
        return dict(error)

    @property
    def events(self) -> list[Any]:
        """The data of a stream up to [DONE], which must be its end; comments are left out."""
        lines = [line for line in self.body.decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines), lines
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def get(gateway: GatewayProcesses, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
    return _request(gateway, method, path, None, headers or {})


def post(gateway: GatewayProcesses, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _request(gateway, "POST", path, raw, {"content-type": "application/json", **(headers or {})})


def chat(gateway: GatewayProcesses, text: str = "Is there tea?", **fields: Any) -> Answer:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}
    return post(gateway, "/v1/chat/completions", body)


def complete(gateway: GatewayProcesses, prompt: Any = "Is there tea?", **fields: Any) -> Answer:
    return post(gateway, "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 8, **fields})


def gauge(gateway: GatewayProcesses, name: str) -> float:
    lines = get(gateway, "/metrics").body.decode().splitlines()
    return sum(float(line.split(" ")[-1]) for line in lines if line.startswith(name) and line[len(name)] in " {")


def raw(gateway: GatewayProcesses, data: bytes, seconds: float = 10) -> bytes:
    """Send bytes, and return all that comes back until the gateway closes or is silent for so long."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=seconds) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


def _request(
    gateway: GatewayProcesses, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=TIMEOUT)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()
