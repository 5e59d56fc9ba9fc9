"""A Triton server behind the gateway: what it serves, and whether it is ready."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from inflight_client import NO_RETRY, AsyncClient, ChatTemplate, Deployment, EncoderDeployment, InflightError
from inflight_client.encoder_call import Task
from inflight_client.model_defaults import OPENAI_SAMPLING

from inflight.gateway.adapters import AdapterFile
from inflight.gateway.model_text import ModelText
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.seeds import is_reproducible

_POLL_SECONDS = 1.0
_SILENT_SECONDS = 10.0
"""A server is busy, not gone, if it answers no sooner."""
_PLACES_WITHOUT_LIMIT = 256
"""In flight at a server that does not report how many sequences it runs."""
_FAILURES = frozenset(
    ("server_gone", "server_unreachable", "connection_closed", "model_not_ready", "engine_died", "engine_restarting")
)
ENGINE_MODEL = "tensorrt_llm"
logger = logging.getLogger("inflight.gateway")


class Target(Protocol):
    """What takes a request. `in_flight` counts the answers, or the texts, that the gateway has open there."""

    in_flight: int
    number: int
    """Its server's place among those of the gateway, from 1."""

    @property
    def ready(self) -> bool: ...

    @property
    def suspect(self) -> bool:
        """Whether a request has just failed there, so that others are asked first."""

    @property
    def model(self) -> str: ...

    @property
    def build(self) -> str | None:
        """The hash of its engine's manifest; None: unknown, as the `precision` of the engine's weights."""

    @property
    def precision(self) -> str | None: ...


@dataclass(eq=False)
class Encoder:
    """A model of a server that embeds, reranks or classifies. `in_flight` counts the texts of open requests."""

    server: UpstreamServer
    deployment: EncoderDeployment
    number: int = 1
    in_flight: int = 0

    @property
    def model(self) -> str:
        """The name under which applications know the model."""
        return str(self.deployment.served.get("model") or self.deployment.model)

    @property
    def ready(self) -> bool:
        return self.server.live and self.deployment.ready

    @property
    def suspect(self) -> bool:
        return self.server.suspect

    @property
    def build(self) -> str | None:
        return self.deployment.build

    @property
    def precision(self) -> str | None:
        return str(self.deployment.served["precision"]) if "precision" in self.deployment.served else None

    @property
    def max_seq_len(self) -> int | None:
        most = self.deployment.served.get("max_seq_len")
        return int(most) if most else None


class UpstreamServer:
    """A Triton server. `in_flight` counts the answers that the gateway has open there."""

    def __init__(
        self,
        address: str,
        settings: GatewaySettings,
        loaded: AdapterFile,
        objection: Callable[[UpstreamServer], str] = lambda server: "",
        number: int = 1,
    ) -> None:
        """`objection` returns why requests must not be sent to the server although it is ready; "" if they may."""
        self.given_address, self.number = address, number
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
        self._unloaded = False
        self._expected = ""
        self.in_flight = 0
        self.live = False
        self.suspect = False
        """Whether a request failed there, and whether it is ready was not found out since then."""
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
            return self._expected
        return str(self.deployment.served.get("model") or self.deployment.model)

    @property
    def build(self) -> str | None:
        return self.deployment.build if self.deployment else None

    @property
    def precision(self) -> str | None:
        return self.deployment.served.get("precision") if self.deployment else None

    @property
    def fingerprint(self) -> str | None:
        """A name of engine and version: answers to a seed may differ where it differs."""
        if self.deployment is None or not self.deployment.build:
            return None
        mode = "fp_reproducible_" if is_reproducible(self.deployment) else "fp_"
        return mode + hashlib.sha256(f"{self.deployment.build} {self.deployment.version}".encode()).hexdigest()[:16]

    @property
    def places(self) -> int:
        """How many answers it may have in flight: twice as many as it runs, so that its queue is never empty."""
        return 2 * self.sequences if self.sequences else _PLACES_WITHOUT_LIMIT

    @property
    def sequences(self) -> int:
        """How many answers it computes at once; 0: unknown."""
        return int((self.deployment and self.deployment.served.get("max_sequences")) or 0)

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

    @property
    def facts_known(self) -> bool:
        """Whether it is known what it serves."""
        return self.deployment is not None or self._only_encoders

    def target(self, task: Literal["generate"] | Task, model: str | None) -> UpstreamServer | Encoder | None:
        """Return what does a task with a model here, by default with any; None: nothing does."""
        if task != "generate":
            encoder = self.encoders.get(task)
            return encoder if encoder is not None and model in (None, encoder.model) else None
        return self if self.deployment and model in (None, self.model, *self.adapters) else None

    def note_failure(self, error: InflightError) -> None:
        """Find out at once whether the server is still ready after the error of a request to it."""
        if error.code in _FAILURES:
            self.suspect = True
            self._doubted.set()

    async def close(self) -> None:
        await asyncio.gather(self.client.close(), self.token_client.close())

    def note_load(self, model: str, loaded: bool) -> None:
        """Note that the server of a model was started, or stopped, by what loads models when requests name them."""
        self._expected = model
        if loaded is self._unloaded:
            self._unloaded = not loaded
            self._doubted.set()

    async def found_ready(self) -> None:
        """Wait until it is ready."""
        while not self.ready:
            self._doubted.set()
            await asyncio.sleep(_POLL_SECONDS / 20)

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
            self.suspect = self._doubted.is_set()
            self.polled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS / 4 if self._problem else _POLL_SECONDS):
                    await self._doubted.wait()

    async def _poll(self) -> None:
        """Find out whether it is ready, and what it serves."""
        if self._unloaded:
            self.live = self.ready = False
            return
        was_live, was_ready = self.live, self.ready
        problem = ""
        try:
            health = await self.client.health(timeout=_SILENT_SECONDS)
            if health.live and (self.encoders or not was_live):
                self._update(await self.client.encoders(timeout=_SILENT_SECONDS))
            if health and was_ready:
                with suppress(InflightError):  # it is asked again soon
                    await self._describe()
            elif health and not (was_live and self._only_encoders):
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
        """Find the model that generates text; a server of encoders has none.

        A new server may have taken the place of another one between two polls, where a proxy is before them.
        """
        found = None
        self.client.refresh()
        try:
            found = await self.client.deployment()
        except InflightError as error:
            if error.code != "unsupported_deployment" or not self.encoders:
                raise
        self._only_encoders = found is None
        if found is not None and not (self.ready and found == self.deployment):
            self.token_client.refresh()
            text = await asyncio.to_thread(ModelText.load, found, self._settings)
            self.speaks_tokens = text.encoder is not None and await self._takes_tokens()
            self.text = text
        self.deployment = found

    async def _takes_tokens(self) -> bool:
        """Return whether the engine's model takes and returns token ids."""
        try:
            engine = await self.token_client.deployment()
        except InflightError as error:
            if error.code not in ("model_not_found", "unsupported_deployment", "permission_denied"):
                raise
            return False
        return engine.speaks_tokens

    def _update(self, deployments: Sequence[EncoderDeployment]) -> None:
        """Keep the encoders that there were, since requests to them may be open."""
        for each in deployments:
            encoder = self.encoders.get(each.task)
            if encoder is None:
                self.encoders[each.task] = Encoder(self, each, self.number)
            else:  # what it serves is unknown while it is not ready
                encoder.deployment = each if each.ready else replace(encoder.deployment, ready=False)
        for task in self.encoders.keys() - {each.task for each in deployments}:
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
