# Generated from _async/openai_transport.py by scripts/unasync.py; do not edit.
"""The transport of OpenAI's API for blocking code: a gateway as one more deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from inflight_client._openai.encoders import EncoderHttpRequest
from inflight_client._openai.messages import CompletionRequest, error_from_response, models, version
from inflight_client._sync.http_transport import HttpResponses, HttpTransport
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import InferRequest, ModelMetadata, Responses, ServerMetadata


class OpenAiTransport(HttpTransport):
    """A gateway's API at an address that ends in /v1; its health and version are beside that path."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        super().__init__(replace(address, path=address.path.removesuffix("/v1")), headers, tls)

    def live(self, deadline: Deadline) -> bool:
        return self._check_health("/health", deadline)

    def ready(self, deadline: Deadline) -> bool:
        return self._check_health("/ready", deadline)

    def model_ready(self, model: str, deadline: Deadline) -> bool:
        return self._check_health(f"/v1/models/{quote(model, safe='')}", deadline)

    def server(self, deadline: Deadline) -> ServerMetadata:
        return ServerMetadata("gateway", version(self._get_body("/version", deadline)))

    def index(self, deadline: Deadline) -> list[Model]:
        entries = models(self._get_body("/v1/models", deadline))
        states = [self.model_ready(name, deadline) for name, _ in entries]
        return [
            Model(name, "", "READY" if ready else "UNAVAILABLE", task=task)
            for (name, task), ready in zip(entries, states, strict=True)
        ]

    def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        self._get_body(f"/v1/models/{quote(model, safe='')}", deadline)
        return ModelMetadata(model, {}, {})

    def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return an empty configuration: the gateway does not publish its servers'."""
        return {}

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> Responses:
        sent = CompletionRequest(request) if request.task == "generate" else EncoderHttpRequest(request)
        return HttpResponses(self, sent, whole, first)

    def response_error(self, status: int, content_type: str, body: bytes, retry_after: str = "") -> InflightError:
        return error_from_response(status, content_type, body, self.where, retry_after)
