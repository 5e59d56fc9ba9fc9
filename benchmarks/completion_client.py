"""A client of /v1/completions that costs little: it reads only when the first token came, and the usage at the end."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

GREEDY: Mapping[str, Any] = {"temperature": 0.0}
SAMPLED: Mapping[str, Any] = {"temperature": 0.8, "top_p": 0.95}
TRAFFIC = {"greedy": GREEDY, "sampled": SAMPLED}
"""What most clients send, beside what is easiest to compute."""


async def send(port: int, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, str, str]:
    """Send a request on a connection of its own; return the status, the head and the body of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}{headers}content-length: {len(body)}\r\n\r\n".encode() + body)
    head, _, rest = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split(" ")[1]), head, rest


class CompletionClient:
    def __init__(self, port: int, model: str, key: str = "") -> None:
        self.port, self.model = port, model
        self._authorization = f"authorization: Bearer {key}\r\n" if key else ""

    async def speed(
        self, prompts: Sequence[str], max_tokens: int, sampling: Mapping[str, Any] = GREEDY
    ) -> tuple[float, float]:
        """Stream an answer of exactly `max_tokens` to each prompt, all at once.

        Return tokens per second, and the median time to the first token.
        """
        began = time.perf_counter()
        results = await asyncio.gather(*(self.stream(prompt, max_tokens, sampling) for prompt in prompts))
        seconds = time.perf_counter() - began
        assert all(tokens == max_tokens for _, tokens in results), results
        return len(prompts) * max_tokens / seconds, statistics.median(first for first, _ in results)

    async def start(
        self, prompt: str, max_tokens: int, sampling: Mapping[str, Any] = GREEDY
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request, and read nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        values: dict[str, Any] = {
            "model": self.model, "prompt": prompt, "max_tokens": max_tokens, "stream": True, **sampling,
            "ignore_eos": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        body = json.dumps(values).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}{self._authorization}content-length: {len(body)}\r\n\r\n".encode() + body)
        return reader, writer

    async def stream(self, prompt: str, max_tokens: int, sampling: Mapping[str, Any]) -> tuple[float, int]:
        """Return the seconds to the first token, and how many tokens there were."""
        began = time.perf_counter()
        reader, writer = await self.start(prompt, max_tokens, sampling)
        first, rest = 0.0, b""
        while data := await reader.read(65536):
            if not first and b'"text":"' in data:
                first = time.perf_counter() - began
            rest = (rest + data)[-2000:]
            if b"data: [DONE]" in rest:
                break
        writer.close()
        usage = rest[rest.rindex(b'"completion_tokens":') :].split(b":")[1].split(b",")[0].rstrip(b"} \r\n")
        return first, int(usage)
