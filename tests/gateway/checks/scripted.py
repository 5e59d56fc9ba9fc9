"""The gateway's handlers of one process, in front of a model whose answers a test writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inflight_client import Deployment, InflightError
from inflight_client.results import Delta, LogProb, Usage

from inflight.gateway.http import BodyMemory, Request
from inflight.gateway.key_ring import Caller
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.model_requests import ModelRequests
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.server_pool import ServerPool
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.token_text import TokenLogprob

MODEL = "tea"
BREW: dict[str, Any] = {"name": "brew", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": BREW}]


class ScriptedGateway:
    """Answers each request with `pieces`, a piece for each delta; `prompts` are those that have reached the model."""

    def __init__(self, folder: Path, checks: Sequence[dict[str, Any]]) -> None:
        self.file = folder / "routes.yaml"
        self.file.write_text(json.dumps({"checks": checks}))
        options: Any = {"tool_call_parser": "hermes", "reasoning_parser": "think", "audit": "x", "audit_prompts": True}
        settings = GatewaySettings(("127.0.0.1:1",), routes=str(self.file), state_dir=str(folder), **options)
        self.pool = ServerPool(settings)
        (server,) = self.pool.servers
        server.deployment, server.ready = Deployment("ensemble", "inflight", {}, served={"model": MODEL}), True
        server.client = SimpleNamespace(stream=self._stream)  # type: ignore[assignment]
        server.text = SimpleNamespace(  # type: ignore[assignment]
            encoder=None, template="", token_texts=self, check_size=lambda *sizes: None, decode=lambda ids, special: ""
        )
        self.metrics = GatewayMetrics(lambda: True)
        quotas = KeyQuotas(folder / "quotas.sqlite")
        self.handlers = ModelRequests(settings, self.pool, quotas, self.metrics, lambda event, request, caller: None)
        self.pieces: Sequence[str] = ()
        self.prompts: list[Any] = []
        self.sent = 0
        self.request: Request | None = None

    @asynccontextmanager
    async def _stream(self, prompt: Any, **options: Any) -> AsyncIterator[AsyncIterator[Delta]]:
        self.prompts.append(prompt)

        async def deltas() -> AsyncIterator[Delta]:
            for place, piece in enumerate(self.pieces):
                self.sent = place + 1
                last = place == len(self.pieces) - 1
                yield Delta(
                    piece,
                    "stop" if last else None,
                    Usage(1, len(self.pieces)) if last else None,
                    token_ids=(place,),
                    log_probs=(LogProb(-0.5),),
                )

        yield deltas()

    def logprobs(self, ids: Sequence[int], values: Sequence[float], most: int) -> list[TokenLogprob]:
        texts = [self.pieces[each] for each in ids]
        return [TokenLogprob(text, list(text.encode()), -0.5) for text in texts]

    async def post(self, path: str, body: dict[str, Any], pieces: Sequence[str], caller: Caller | None = None) -> str:
        """Return the body of the response. Raises ApiError."""
        self.pieces, sent = pieces, bytearray()
        raw = json.dumps({"model": MODEL, **body}).encode()
        messages = [{"type": "http.request", "body": raw}]

        async def receive() -> MutableMapping[str, Any]:
            return messages.pop() if messages else await asyncio.Event().wait()  # type: ignore[return-value]

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.extend(message.get("body", b""))

        scope = {"method": "POST", "path": path, "headers": []}
        self.request = Request(scope, receive, send, "id", 2**24, BodyMemory(2**26))
        try:
            await self.handlers.routes[path]["POST"](self.request, caller or Caller())
        except InflightError as error:
            raise ApiError.from_error(error) from None
        finally:
            self.request.close()
        return sent.decode()


def read(answer: str) -> dict[str, Any]:
    """What an application reads of an answer: its text, its reasoning, its calls' arguments, and how it ended."""
    found: dict[str, Any] = {"text": "", "reasoning": "", "arguments": "", "finish": None, "logprobs": ""}
    lines = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith(("data: {", "{"))]
    for frame in map(json.loads, lines):
        if frame.get("type") in ("response.completed", "response.incomplete"):
            frame = frame["response"]
        for choice in frame.get("choices") or ():
            part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            found["text"] += part.get("content") or ""
            found["reasoning"] += part.get("reasoning_content") or ""
            for call in part.get("tool_calls") or ():
                found["arguments"] += call["function"].get("arguments") or ""
            found["finish"] = choice["finish_reason"] or found["finish"]
            scores = choice.get("logprobs") or {}
            tokens = [each["token"] for each in scores.get("content", ())] + scores.get("tokens", [])
            found["logprobs"] += "".join(tokens)
        for item in frame.get("output") or ():
            kind = {"message": "text", "reasoning": "reasoning"}.get(item["type"], "arguments")
            found[kind] += item.get("arguments") or "".join(each["text"] for each in item.get("content") or ())
            found["finish"] = (frame["incomplete_details"] or {}).get("reason", "stop")
    return found
