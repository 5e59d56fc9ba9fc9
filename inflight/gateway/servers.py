"""The Triton servers behind the gateway: what each serves, whether it is ready, and which one takes a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any, Literal, Protocol
from urllib.request import ProxyHandler, build_opener

from inflight_client import NO_RETRY, AsyncClient, ChatTemplate, Deployment, EncoderDeployment, InflightError
from inflight_client.encoder_call import Task
from inflight_client.model_defaults import OPENAI_SAMPLING

from inflight.gateway.adapters import AdapterFile
from inflight.gateway.batches.models import BatchModel
from inflight.gateway.model_text import ModelText
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import RETRY_SECONDS, ApiError

_POLL_SECONDS = 1.0
_SILENT_SECONDS = 10.0
"""A server is busy, not gone, if it answers no sooner."""
_FIRST_POLL_SECONDS = 2.0
_PLACES_WITHOUT_LIMIT = 256
"""In flight at a server that does not report how many sequences it runs."""

_ENCODER_PLACES = 4096
"""Texts in flight at an encoder, most of which wait: the more there are, the less the server pads."""
_FAILURES = frozenset(("server_gone", "server_unreachable", "connection_closed", "model_not_ready"))
_ABILITIES = {
    "generate": "generates text",
    "embed": "embeds texts",
    "rerank": "reranks documents",
    "classify": "classifies texts",
}

ENGINE_MODEL = "tensorrt_llm"
_DIRECT = build_opener(ProxyHandler({}))  # the page is on the server's host
_PAGE_SECONDS = 3.0
_MAX_PAGE_BYTES = 8 * 2**20
logger = logging.getLogger("inflight.gateway")


class Target(Protocol):
    """What takes a request. `in_flight` counts the answers, or the texts, that the gateway has open there."""

    in_flight: int


@dataclass(eq=False)
class Encoder:
    """A model of a server that embeds, reranks or classifies. `in_flight` counts the texts of open requests."""

    server: UpstreamServer
    deployment: EncoderDeployment
    in_flight: int = 0

    @property
    def model(self) -> str:
        """The name under which applications know the model."""
        return str(self.deployment.served.get("model") or self.deployment.model)

    @property
    def ready(self) -> bool:
        return self.server.live and self.deployment.ready

    @property
    def max_seq_len(self) -> int | None:
        most = self.deployment.served.get("max_seq_len")
        return int(most) if most else None


@dataclass(frozen=True)
class ServedModel:
    """A model as applications see it; what is unknown is None."""

    name: str
    task: Literal["generate"] | Task
    max_seq_len: int | None
    dimensions: int | None = None
    sampling: Mapping[str, Any] | None = None
    chat_template: bool | None = None
    notes: Sequence[str] = ()
    parent: str | None = None
    """Of a LoRA adapter: the model that it changes."""


class UpstreamServer:
    """A Triton server. `in_flight` counts the answers that the gateway has open there."""

    def __init__(
        self,
        address: str,
        settings: GatewaySettings,
        loaded: AdapterFile,
        objection: Callable[[UpstreamServer], str] = lambda server: "",
    ) -> None:
        """`objection` returns why requests must not be sent to the server although it is ready; "" if they may."""
        self.given_address = address
        server, _, metrics = address.partition(",metrics=")
        self.address, self.metrics_url = server, metrics or None
        self.client = AsyncClient(
            server, retry=NO_RETRY, metrics_url=metrics or None, chat_template=_chat_template(settings.tokenizer)
        )
        self.token_client = AsyncClient(server, ENGINE_MODEL, retry=NO_RETRY)
        """Of the model that takes and returns token ids."""
        self.speaks_tokens = False
        """Whether the gateway converts text and tokens itself, and sends requests to that model."""
        self._settings, self._loaded, self._objection = settings, loaded, objection
        self._problem = ""
        self._only_encoders = False
        self.in_flight = 0
        self.live = False
        self.ready = False
        """Whether the model that generates text is ready."""
        self.deployment: Deployment | None = None
        self.encoders: dict[Task, Encoder] = {}
        self.text = ModelText.unknown()
        self._doubted = asyncio.Event()
        self.polled = asyncio.Event()
        """Set once it is known whether the server is ready."""

    @property
    def generator(self) -> AsyncClient:
        """The client of the model that generates."""
        return self.token_client if self.speaks_tokens else self.client

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

    @property
    def served(self) -> Mapping[str, Any]:
        """What the server publishes of its model, with the sampling parameters that answers have by default."""
        served = self.deployment.served if self.deployment else {}
        if self._settings.generation_config == "ignore" or "sampling" not in served:
            return {**served, "sampling": OPENAI_SAMPLING}
        return served

    @property
    def adapters(self) -> Mapping[str, int]:
        """The numbers of its LoRA adapters by their names, which are those of models for applications."""
        loaded = self._loaded.numbers if self.loads_adapters else {}
        started = {name: number for number, name in enumerate(map(str, self.served.get("adapters", ())), 1)}
        return {**loaded, **started}

    @property
    def loads_adapters(self) -> bool:
        """Whether it loads adapters while it runs."""
        return bool(self.served.get("loads_adapters"))

    @property
    def stream_interval(self) -> int:
        """The most tokens that a response of a stream has in general."""
        return int((self.deployment and self.deployment.served.get("stream_interval")) or 1)

    def note_failure(self, error: InflightError) -> None:
        """Find out at once whether the server is still ready after the error of a request to it."""
        if error.code in _FAILURES:
            self._doubted.set()

    async def watch(self) -> None:
        """Keep `live` and `ready` true as long as the server and its model are."""
        while True:
            self._doubted.clear()
            try:
                await self._poll()
            except Exception as error:
                self.live = self.ready = False
                if str(error) != self._problem:
                    logger.exception("%s is not ready, since watching it failed", self.address)
                self._problem = str(error) or type(error).__name__
            self.polled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS / 4 if self._problem else _POLL_SECONDS):
                    await self._doubted.wait()

    async def _poll(self) -> None:
        """Find out whether it is ready, and what it serves if it was not ready before."""
        was_live, was_ready = self.live, self.ready
        problem = ""
        try:
            health = await self.client.health(timeout=_SILENT_SECONDS)
            if health.live and (self.encoders or not was_live):
                self._update(await self.client.encoders(timeout=_SILENT_SECONDS))
            if health and not was_ready and not (was_live and self._only_encoders):
                await self._describe()
            self.live = health.live
            if self.deployment or not any(encoder.ready for encoder in self.encoders.values()):
                problem = health.reason or self._objection(self)
        except InflightError as error:
            problem, self.live = str(error), False
        self.ready = self.deployment is not None and not problem
        if problem and (was_ready or self.deployment or self.encoders) and problem != self._problem:
            logger.warning("%s is not ready: %s", self.address, problem)
        self._problem = problem

    async def _describe(self) -> None:
        """Find the model that generates text; a server of encoders has none."""
        try:
            self.deployment = await self.client.deployment()
        except InflightError as error:
            if error.code != "unsupported_deployment" or not self.encoders:
                raise
        self._only_encoders = self.deployment is None
        if self.deployment is not None:
            self.text = await asyncio.to_thread(ModelText.load, self.deployment, self._settings)
            self.speaks_tokens = self.text.encoder is not None and await self._takes_tokens()

    async def _takes_tokens(self) -> bool:
        """Return whether the engine's model takes and returns token ids."""
        try:
            engine = await self.token_client.deployment()
        except InflightError as error:
            if error.code not in ("model_not_found", "unsupported_deployment"):
                raise
            return False
        return engine.speaks_tokens

    def _update(self, found: Sequence[EncoderDeployment]) -> None:
        """Keep the encoders that there were, since requests to them may be open."""
        for each in found:
            known = self.encoders.get(each.task)
            if known is None:
                self.encoders[each.task] = Encoder(self, each)
            else:  # what it serves is unknown while it is not ready
                known.deployment = each if each.ready else replace(known.deployment, ready=False)
        for task in self.encoders.keys() - {each.task for each in found}:
            del self.encoders[task]


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
        self.adapters = AdapterFile(settings.state_path / "adapters.json")
        self.servers = [
            UpstreamServer(address, settings, self.adapters, self._objection) for address in settings.servers
        ]
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
        await asyncio.gather(*(client.close() for each in self.servers for client in (each.client, each.token_client)))

    @property
    def ready(self) -> bool:
        return any(server.ready or any(each.ready for each in server.encoders.values()) for server in self.servers)

    def metrics_page(self) -> bytes:
        """Return the metrics page of the only server; empty if there are several, or it does not answer. Blocks."""
        url = self.servers[0].metrics_url if len(self.servers) == 1 else None
        if url is None:
            return b""
        try:
            with _DIRECT.open(url, timeout=_PAGE_SECONDS) as answer:
                page: bytes = answer.read(_MAX_PAGE_BYTES)
        except (OSError, HTTPException, ValueError) as error:
            logger.warning("The metrics page %s can't be read: %s", url, error)
            return b""
        return page if page.endswith(b"\n") else b""

    @property
    def places(self) -> int:
        return sum(server.places for server in self.servers if server.ready)

    def encoder_places(self, task: Task, model: str) -> int:
        """How many texts may be in flight at the servers that have the encoder."""
        return _ENCODER_PLACES * sum(encoder.ready and encoder.model == model for encoder in self._encoders(task))

    @property
    def known(self) -> Sequence[UpstreamServer]:
        """The first server of each model that generates text."""
        return list({server.model: server for server in reversed(self.servers) if server.deployment}.values())

    @property
    def models(self) -> Sequence[ServedModel]:
        """All models: those that generate text, then the encoders."""
        found = {
            (encoder.model, task): ServedModel(
                encoder.model, task, encoder.max_seq_len, encoder.deployment.dimensions if task == "embed" else None
            )
            for server in self.servers
            for task, encoder in server.encoders.items()
        }
        generators = (
            ServedModel(
                *(name, "generate", each.max_seq_len),
                sampling=each.served["sampling"],
                chat_template=each.served.get("chat_template"),
                notes=each.served.get("notes", ()),
                parent=None if name == each.model else each.model,
            )
            for each in self.known
            for name in (each.model, *each.adapters)
        )
        return [*generators, *found.values()]

    def for_batches(self, task: Literal["generate"] | Task) -> dict[str, BatchModel] | None:
        """Return the models for a task by their names; None if no model is known."""
        found: dict[str, BatchModel] = {}
        for server in self.servers:
            names: Mapping[str, int | None] = {}
            if task != "generate":
                names = {server.encoders[task].model: None} if task in server.encoders else {}
            elif server.deployment:
                names = {**server.adapters, server.model: None}
            for name, adapter in names.items():
                known = found.setdefault(name, BatchModel((), adapter))
                if known.adapter == adapter:  # under another number, it may be another one
                    found[name] = known._replace(servers=(*known.servers, server.given_address))
        return found if self.models else None

    def ready_model(self, name: str) -> ServedModel:
        """Return a model by its name. Raises ApiError 404, or 503 if it is not ready."""
        found = next((each for each in self.models if each.name == name), None)
        if found is not None and found.task != "generate":
            self.choose_encoder(found.task, name)
        else:
            self.choose(name)
        assert found is not None
        return found

    def choose(self, model: str, visible: Container[str] | None = None) -> UpstreamServer:
        """Return the ready server of a model with the fewest answers in flight.

        Raises ApiError 404, which names the visible models alone (by default all), or 503.
        """
        found = [server for server in self.servers if server.deployment and model in (server.model, *server.adapters)]
        ready = [server for server in found if server.ready]
        if ready:
            return min(ready, key=lambda server: server.in_flight)
        raise self._not_ready() if found or not self.models else self._no_model(model, "generate", visible)

    def choose_encoder(self, task: Task, model: str, visible: Container[str] | None = None) -> Encoder:
        """Return the ready encoder of that name with the fewest texts in flight.

        Raises ApiError 400 or 404, which name the visible models alone, or 503.
        """
        found = [encoder for encoder in self._encoders(task) if encoder.model == model]
        ready = [encoder for encoder in found if encoder.ready]
        if ready:
            return min(ready, key=lambda encoder: encoder.in_flight)
        raise self._not_ready() if found or not self.models else self._no_model(model, task, visible)

    def only_encoder(self, task: Task, visible: Container[str] | None = None) -> str:
        """Return the name of the only visible model for a task, for a request that names none. Raises ApiError."""
        found = {encoder.model for encoder in self._encoders(task)}
        names = {name for name in found if visible is None or name in visible}
        if len(names) == 1:
            return names.pop()
        if not self.models:
            raise self._not_ready()
        if names:
            problem = f"the request has no model; set it to one that {_ABILITIES[task]}: {', '.join(sorted(names))}"
        else:
            problem = f"no served model {_ABILITIES[task]}; serve one with `inflight serve --{task} ENGINE`"
        raise ApiError(problem, "invalid_request", "model")

    def _encoders(self, task: Task) -> list[Encoder]:
        return [server.encoders[task] for server in self.servers if task in server.encoders]

    def _not_ready(self) -> ApiError:
        return ApiError(
            "the server is starting or restarting; send the request again later",
            "model_not_ready",
            status=503,
            headers={"retry-after": str(RETRY_SECONDS)},
        )

    def _no_model(self, model: str, task: Literal["generate"] | Task, visible: Container[str] | None) -> ApiError:
        """Return the error for a model that is not there, or has another task."""
        names = [each.name for each in self.models if each.task == task]
        able = ", ".join(name for name in names if visible is None or name in visible) or "none"
        other = next((each for each in self.models if each.name == model), None)
        if other is None:
            return ApiError(
                f"there is no model {model[:100]!r}; the served models for this task are: {able}",
                "model_not_found",
                "model",
                404,
            )
        return ApiError(
            f"the model {model[:100]!r} {_ABILITIES[other.task]}; send a model that {_ABILITIES[task]} ({able})",
            "unsupported_input",
            "model",
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
