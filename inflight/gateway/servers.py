"""The Triton servers behind the gateway: what each serves, whether it is ready, and which one takes a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from inflight_client import NO_RETRY, AsyncClient, ChatTemplate, Deployment, InflightError

from inflight.gateway.model_text import ModelText
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import RETRY_SECONDS, ApiError

_POLL_SECONDS = 1.0
_PLACES_WITHOUT_LIMIT = 256
"""In flight at a server that does not report how many sequences it runs."""

logger = logging.getLogger("inflight.gateway")


class UpstreamServer:
    """A Triton server. `in_flight` counts the answers that the gateway has open there."""

    def __init__(self, address: str, settings: GatewaySettings) -> None:
        server, _, metrics = address.partition(",metrics=")
        self.address, self.metrics_url = server, metrics or None
        self.client = AsyncClient(
            server, retry=NO_RETRY, metrics_url=metrics or None, chat_template=_chat_template(settings.tokenizer)
        )
        self._settings = settings
        self.in_flight = 0
        self.ready = False
        self.deployment: Deployment | None = None
        self.text = ModelText.unknown()

    @property
    def model(self) -> str:
        """The name under which applications know the model."""
        if self._settings.served_model_name:
            return self._settings.served_model_name
        if self.deployment is None:
            return ""
        return str(self.deployment.served.get("model") or self.deployment.model)

    @property
    def places(self) -> int:
        """How many answers it may have in flight: twice as many as it runs, so that its queue is never empty."""
        most = self.deployment.served.get("max_sequences") if self.deployment else None
        return 2 * int(most) if most else _PLACES_WITHOUT_LIMIT

    @property
    def max_seq_len(self) -> int | None:
        most = self.deployment.served.get("max_seq_len") if self.deployment else None
        return int(most) if most else None

    async def poll(self) -> None:
        """Find out whether it is ready, and what it serves if it was not ready before."""
        was_ready = self.ready
        try:
            ready = await self.client.ready(timeout=2.0)
            if ready and not was_ready:
                self.deployment = await self.client.deployment()
                self.text = await asyncio.to_thread(ModelText.load, self.deployment, self._settings)
            self.ready = ready
        except InflightError as error:
            self.ready = False
            if was_ready:
                logger.warning("%s is not ready: %s", self.address, error)


def _chat_template(directory: str | None) -> ChatTemplate | None:
    """Return the template for deployments that render no messages themselves."""
    if directory is None:
        return None
    try:
        return ChatTemplate.from_directory(directory)
    except InflightError as error:
        logger.warning("%s", error)
        return None


class ServerPool:
    """All servers, polled by a task."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.servers = [UpstreamServer(address, settings) for address in settings.servers]
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._poll())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.gather(*(server.client.close() for server in self.servers))

    @property
    def ready(self) -> bool:
        return any(server.ready for server in self.servers)

    @property
    def places(self) -> int:
        return sum(server.places for server in self.servers if server.ready)

    @property
    def known(self) -> Sequence[UpstreamServer]:
        """The first server of each model."""
        return list({server.model: server for server in reversed(self.servers) if server.deployment}.values())

    def choose(self, model: str) -> UpstreamServer:
        """Return the ready server of a model with the fewest answers in flight. Raises ApiError 404 or 503."""
        found = [server for server in self.servers if server.deployment and server.model == model]
        ready = [server for server in found if server.ready]
        if ready:
            return min(ready, key=lambda server: server.in_flight)
        if found or not self.known:
            raise ApiError(
                "the server is starting or restarting; send the request again later",
                "model_not_ready",
                status=503,
                headers={"retry-after": str(RETRY_SECONDS)},
            )
        names = ", ".join(server.model for server in self.known)
        raise ApiError(
            f"there is no model {model[:100]!r}; the served models are: {names}", "model_not_found", "model", 404
        )

    async def _poll(self) -> None:
        while True:
            await asyncio.gather(*(server.poll() for server in self.servers))
            await asyncio.sleep(_POLL_SECONDS if all(server.ready for server in self.servers) else _POLL_SECONDS / 4)
