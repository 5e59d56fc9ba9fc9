"""The Triton servers behind the gateway: what each serves, whether it is ready, and which one takes a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from inflight_client import NO_RETRY, AsyncClient, ChatTemplate, Deployment, InflightError

from inflight.gateway.model_text import ModelText
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import RETRY_SECONDS, ApiError

_POLL_SECONDS = 1.0
_SILENT_SECONDS = 10.0
"""A server is busy, not gone, if it answers no sooner."""
_FIRST_POLL_SECONDS = 2.0
_PLACES_WITHOUT_LIMIT = 256
"""In flight at a server that does not report how many sequences it runs."""

logger = logging.getLogger("inflight.gateway")


class UpstreamServer:
    """A Triton server. `in_flight` counts the answers that the gateway has open there."""

    def __init__(
        self, address: str, settings: GatewaySettings, objection: Callable[[UpstreamServer], str] = lambda server: ""
    ) -> None:
        """`objection` returns why requests must not be sent to the server although it is ready; "" if they may."""
        server, _, metrics = address.partition(",metrics=")
        self.address, self.metrics_url = server, metrics or None
        self.client = AsyncClient(
            server, retry=NO_RETRY, metrics_url=metrics or None, chat_template=_chat_template(settings.tokenizer)
        )
        self._settings, self._objection = settings, objection
        self._problem = ""
        self.in_flight = 0
        self.ready = False
        self.deployment: Deployment | None = None
        self.text = ModelText.unknown()
        self._doubted = asyncio.Event()
        self.polled = asyncio.Event()
        """Set once it is known whether the server is ready."""

    @property
    def model(self) -> str:
        """The name under which applications know the model."""
        return self._settings.served_model_name or self.own_model

    @property
    def own_model(self) -> str:
        """The name that the server gives its model; "" while it is unknown."""
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

    def doubt(self) -> None:
        """A request failed there: find out at once whether it is still ready."""
        self._doubted.set()

    async def watch(self) -> None:
        """Keep `ready` true as long as the server is ready."""
        while True:
            self._doubted.clear()
            await self._poll()
            self.polled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS if self.ready else _POLL_SECONDS / 4):
                    await self._doubted.wait()

    async def _poll(self) -> None:
        """Find out whether it is ready, and what it serves if it was not ready before."""
        was_ready = self.ready
        try:
            health = await self.client.health(timeout=_SILENT_SECONDS)
            if health and not was_ready:
                self.deployment = await self.client.deployment()
                self.text = await asyncio.to_thread(ModelText.load, self.deployment, self._settings)
            problem = health.reason or self._objection(self)
        except InflightError as error:
            problem = str(error)
        self.ready = not problem
        if problem and (was_ready or self.deployment) and problem != self._problem:
            logger.warning("%s is not ready: %s", self.address, problem)
        self._problem = problem


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
    """All servers, each watched by a task."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.servers = [UpstreamServer(address, settings, self._objection) for address in settings.servers]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Watch all servers; return once it is known whether each is ready, or after a while."""
        self._tasks = [asyncio.create_task(server.watch()) for server in self.servers]
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_POLL_SECONDS):
                await asyncio.gather(*(server.polled.wait() for server in self.servers))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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

    def _objection(self, server: UpstreamServer) -> str:
        """One name for several servers is one for several models only if they differ, and then it names none."""
        others = {other.own_model for other in self.servers if other.ready and other is not server}
        if not self._settings.served_model_name or others <= {server.own_model}:
            return ""
        return (
            f"it serves {server.own_model}, and another server {' and '.join(sorted(others))}; leave"
            " --served-model-name out, or start a gateway for each model"
        )
