"""The transport of OpenAI's API for asyncio: a gateway as one more deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from inflight_client._async.http_transport import AsyncHttpResponses, AsyncHttpTransport
from inflight_client._openai.encoders import EncoderHttpRequest
from inflight_client._openai.messages import CompletionRequest, error_from_response, models, version
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import AsyncResponses, InferRequest, ModelMetadata, ServerMetadata


class AsyncOpenAiTransport(AsyncHttpTransport):
    """A gateway's API at an address that ends in /v1; its health and version are beside that path."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        super().__init__(replace(address, path=address.path.removesuffix("/v1")), headers, tls)

    async def live(self, deadline: Deadline) -> bool:
        return await self._check_health("/health", deadline)

    async def ready(self, deadline: Deadline) -> bool:
        return await self._check_health("/ready", deadline)

    async def model_ready(self, model: str, deadline: Deadline) -> bool:
        return await self._check_health(f"/v1/models/{quote(model, safe='')}", deadline)

    async def server(self, deadline: Deadline) -> ServerMetadata:
        return ServerMetadata("gateway", version(await self._get_body("/version", deadline)))

    async def index(self, deadline: Deadline) -> list[Model]:
        entries = models(await self._get_body("/v1/models", deadline))
        states = [await self.model_ready(name, deadline) for name, _ in entries]
        return [
            Model(name, "", "READY" if ready else "UNAVAILABLE", task=task)
            for (name, task), ready in zip(entries, states, strict=True)
        ]

    async def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        await self._get_body(f"/v1/models/{quote(model, safe='')}", deadline)
        return ModelMetadata(model, {}, {})

    async def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return an empty configuration: the gateway does not publish its servers'."""
        return {}

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> AsyncResponses:
        sent = CompletionRequest(request) if request.task == "generate" else EncoderHttpRequest(request)
        return AsyncHttpResponses(self, sent, whole, first)

    def response_error(self, status: int, content_type: str, body: bytes, retry_after: str = "") -> InflightError:
        return error_from_response(status, content_type, body, self.where, retry_after)
