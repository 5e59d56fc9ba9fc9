"""The transport of OpenAI's API for asyncio: a gateway or another such server as one more deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpcore2

from inflight_client._async.http_transport import AsyncHttpResponses, AsyncHttpTransport
from inflight_client._http.call_context import AsyncCallContext
from inflight_client._http.infer_requests import HttpInferRequest
from inflight_client._openai.encoders import EncoderHttpRequest
from inflight_client._openai.errors import error_from_response
from inflight_client._openai.messages import CompletionRequest
from inflight_client._openai.server_facts import api_paths, dialect_of_models, is_about, model_entries, version
from inflight_client._openai.transcriptions import TranscriptionHttpRequest
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.deployments.server_query import REFUSAL_CODES
from inflight_client.dialects import DIALECTS
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import AsyncResponses, InferRequest, ModelMetadata, ServerMetadata


class AsyncOpenAiTransport(AsyncHttpTransport):
    """An API at an address that usually ends in /v1; its health and version are beside that path."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        root, self.api = api_paths(address)
        super().__init__(replace(address, path=root), headers, tls)
        self._named_dialect = self._dialect = address.dialect
        """Empty until it is detected."""

    async def live(self, deadline: Deadline) -> bool:
        inflight = await self.dialect(deadline) == "inflight"
        return await (self._check_health("/health", deadline) if inflight else self.ready(deadline))

    async def ready(self, deadline: Deadline) -> bool:
        return await self._check_health(DIALECTS[await self.dialect(deadline)].health or f"{self.api}/models", deadline)

    async def model_ready(self, model: str, deadline: Deadline) -> bool:
        if await self.dialect(deadline) != "inflight":
            return await self.ready(deadline)
        return await self._check_health(f"{self.api}/models/{quote(model, safe='')}", deadline)

    async def server(self, deadline: Deadline) -> ServerMetadata:
        """Return the version with the name `gateway` for inflight's, and the dialect's for another server."""
        name = await self.dialect(deadline)
        about, field = DIALECTS[name].about, DIALECTS[name].version
        if name == "inflight":
            return ServerMetadata("gateway", version(await self._get_body(about, deadline), field))
        try:
            return ServerMetadata(name, version(await self._get_body(about, deadline), field) if about else "")
        except InflightError as error:
            if error.code not in (*REFUSAL_CODES, "answer_damaged"):
                raise
            return ServerMetadata(name, "")

    async def index(self, deadline: Deadline) -> list[Model]:
        entries = await self.entries(deadline)
        inflight = self._dialect == "inflight"
        names = [str(entry["id"]) for entry in entries]
        states = [await self.model_ready(name, deadline) if inflight else True for name in names]
        return [
            Model(
                name, "", "READY" if ready else "UNAVAILABLE", *(str(entry.get(key) or "") for key in ("state", "task"))
            )
            for name, entry, ready in zip(names, entries, states, strict=True)
        ]

    async def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        if await self.dialect(deadline) == "inflight":
            await self._get_body(f"{self.api}/models/{quote(model, safe='')}", deadline)
        elif model not in [entry["id"] for entry in await self.entries(deadline)]:
            raise InflightError(f"the server at {self.where} lists no model {model}", "model_not_found")
        return ModelMetadata(model, {}, {})

    async def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return an empty configuration: the gateway does not publish its servers'."""
        return {}

    async def entries(self, deadline: Deadline) -> list[Mapping[str, Any]]:
        """Return the list of models, and detect the dialect by it."""
        entries = model_entries(await self._get_body(f"{self.api}/models", deadline))
        self._dialect = self._named_dialect or dialect_of_models(entries) or await self._probed_dialect(deadline)
        return entries

    async def dialect(self, deadline: Deadline) -> str:
        """Return the name of the server's dialect; detect it if it is not known yet."""
        if not self._dialect:
            try:
                await self.entries(deadline)
            except InflightError as error:
                if error.code == "unsupported_deployment":  # there is no list
                    self._dialect = await self._probed_dialect(deadline)
                elif error.code in REFUSAL_CODES:
                    return "inflight"  # whose health needs no API key
                else:
                    raise
        return self._dialect

    async def _probed_dialect(self, deadline: Deadline) -> str:
        """Detect a server whose list of models says nothing."""
        if self._channel.address.host.endswith("openai.com"):
            return "openai"
        for name, dialect in DIALECTS.items():
            if dialect.known_by:
                status, _, body = await self._get(dialect.about, deadline)
                if status == 200 and is_about(body, dialect):
                    return name
        return "other"

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> AsyncResponses:
        kinds: dict[str, Callable[[InferRequest], HttpInferRequest]] = {
            "generate": CompletionRequest,
            "transcribe": TranscriptionHttpRequest,
        }
        sent = kinds.get(request.task, EncoderHttpRequest)(request)
        return AsyncHttpResponses(self, sent, whole, first)

    async def send(self, request: HttpInferRequest, exchange: AsyncCallContext) -> httpcore2.Response:
        if isinstance(request, CompletionRequest | EncoderHttpRequest | TranscriptionHttpRequest):
            request.adapt(await self.dialect(exchange.deadline), self.api)
        return await super().send(request, exchange)

    def response_error(
        self, status: int, content_type: str, body: bytes, retry_after: float | None = None
    ) -> InflightError:
        return error_from_response(status, content_type, body, self.where, retry_after)
