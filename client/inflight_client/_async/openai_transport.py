"""The transport of OpenAI's API for asyncio: a gateway as one more deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from inflight_client._async.http_transport import AsyncHttpResponses, AsyncHttpTransport
from inflight_client._http.responses import is_status_ready
from inflight_client._openai.encoders import EncoderHttpRequest
from inflight_client._openai.errors import error_from_response
from inflight_client._openai.messages import CompletionRequest, models, served_model, version
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.results import Model
from inflight_client.transport import AsyncResponses, InferRequest, ModelMetadata, ServerMetadata


class AsyncOpenAiTransport(AsyncHttpTransport):
    """A gateway's API at an address that ends in /v1; its health and version are beside that path."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        super().__init__(replace(address, path=address.path.removesuffix("/v1")), headers, tls)

    async def live(self, deadline: Deadline) -> bool:
        return await self._check("/health", deadline)

    async def ready(self, deadline: Deadline) -> bool:
        return await self._check("/ready", deadline)

    async def model_ready(self, model: str, deadline: Deadline) -> bool:
        return await self._check(f"/v1/models/{quote(model, safe='')}", deadline)

    async def server(self, deadline: Deadline) -> ServerMetadata:
        return ServerMetadata("gateway", version(await self._body("/version", deadline)))

    async def index(self, deadline: Deadline) -> list[Model]:
        found = models(await self._body("/v1/models", deadline))
        return [served_model(name, await self.model_ready(name, deadline), task) for name, task in found]

    async def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        await self._body(f"/v1/models/{quote(model, safe='')}", deadline)
        return ModelMetadata(model, {}, {})

    async def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return an empty configuration: the gateway does not publish its servers'."""
        return {}

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> AsyncResponses:
        sent = CompletionRequest(request) if request.task == "generate" else EncoderHttpRequest(request)
        return AsyncHttpResponses(self, sent, whole, first)

    async def _check(self, path: str, deadline: Deadline) -> bool:
        status, kind, body = await self._get(path, deadline, None)
        return is_status_ready(status, error_from_response(status, kind, body, self.where))

    async def _body(self, path: str, deadline: Deadline) -> bytes:
        status, kind, body = await self._get(path, deadline, None)
        if status != 200:
            raise error_from_response(status, kind, body, self.where)
        return body
