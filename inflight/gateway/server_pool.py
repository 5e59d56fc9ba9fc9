"""The models and servers behind the gateway, and which server takes a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Literal, TypeVar
from urllib.request import ProxyHandler, build_opener

from inflight_client.encoder_call import Task

from inflight.gateway.adapters import AdapterFile
from inflight.gateway.batches.models import BatchModel
from inflight.gateway.servers import Encoder, UpstreamServer
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import RETRY_SECONDS, ApiError

_FIRST_POLL_SECONDS = 2.0
_ENCODER_PLACES = 4096
"""Texts in flight at an encoder, most of which wait: the more there are, the less the server pads."""
_ABILITIES = {
    "generate": "generates text",
    "embed": "embeds texts",
    "rerank": "reranks documents",
    "classify": "classifies texts",
}
_DIRECT = build_opener(ProxyHandler({}))  # the page is on the server's host
_PAGE_SECONDS = 3.0
_MAX_PAGE_BYTES = 8 * 2**20
logger = logging.getLogger("inflight.gateway")
Target = TypeVar("Target", UpstreamServer, Encoder)


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

    def described(self, created: int) -> dict[str, Any]:
        """Return OpenAI's `model` object."""
        extras = {
            "task": self.task,
            "max_model_len": self.max_seq_len,
            "dimensions": self.dimensions,
            "sampling": self.sampling,
            "chat_template": self.chat_template,
            "notes": list(self.notes) or None,
            "parent": self.parent,
        }
        details = {name: value for name, value in extras.items() if value is not None}
        return {"id": self.name, "object": "model", "created": created, "owned_by": "inflight", **details}


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

    def places(self, task: Literal["generate"] | Task, model: str) -> int:
        """How many answers, or texts, of a model may be in flight at its servers.

        --max-in-flight is divided among the models that generate text as their servers' own places are.
        """
        if task != "generate":
            return _ENCODER_PLACES * sum(encoder.ready and encoder.model == model for encoder in self._encoders(task))
        places = sum(server.places for server in self.servers if server.ready and server.model == model)
        if self._settings.max_in_flight is None:
            return places
        return self._settings.max_in_flight * places // (sum(each.places for each in self.servers if each.ready) or 1)

    @property
    def known(self) -> Sequence[UpstreamServer]:
        """The first server of each model that generates text."""
        return list({server.model: server for server in reversed(self.servers) if server.deployment}.values())

    @property
    def models(self) -> Sequence[ServedModel]:
        """All models: those that generate text, then the encoders."""
        encoders = {
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
        return [*generators, *encoders.values()]

    def for_batches(self, task: Literal["generate"] | Task) -> dict[str, BatchModel] | None:
        """Return the models for a task by their names; None if no model is known."""
        models: dict[str, BatchModel] = {}
        for server in self.servers:
            names: Mapping[str, int | None] = {}
            if task != "generate":
                names = {server.encoders[task].model: None} if task in server.encoders else {}
            elif server.deployment:
                names = {**server.adapters, server.model: None}
            for name, adapter in names.items():
                model = models.setdefault(name, BatchModel((), adapter))
                if model.adapter == adapter:  # under another number, it may be another one
                    models[name] = model._replace(servers=(*model.servers, server.given_address))
        return models if self.models else None

    def ready_model(self, name: str) -> ServedModel:
        """Return a model by its name. Raises ApiError 404, or 503 if it is not ready."""
        model = next((each for each in self.models if each.name == name), None)
        if model is not None and model.task != "generate":
            self.choose_encoder(model.task, name)
        else:
            self.choose(name)
        assert model is not None
        return model

    def choose(self, model: str, visible: Container[str] | None = None) -> UpstreamServer:
        """Return the ready server of a model with the fewest answers in flight.

        Raises ApiError 404, which names the visible models alone (by default all), or 503.
        """
        serving = [server for server in self.servers if server.deployment and model in (server.model, *server.adapters)]
        return self._least_busy(serving, model, "generate", visible)

    def choose_encoder(self, task: Task, model: str, visible: Container[str] | None = None) -> Encoder:
        """Return the ready encoder of that name with the fewest texts in flight.

        Raises ApiError 400 or 404, which name the visible models alone, or 503.
        """
        serving = [encoder for encoder in self._encoders(task) if encoder.model == model]
        return self._least_busy(serving, model, task, visible)

    def _least_busy(
        self, serving: Sequence[Target], model: str, task: Literal["generate"] | Task, visible: Container[str] | None
    ) -> Target:
        if ready := [each for each in serving if each.ready]:
            return min(ready, key=lambda each: each.in_flight)
        raise self._not_ready() if serving or not self.models else self._no_model(model, task, visible)

    def only_encoder(self, task: Task, visible: Container[str] | None = None) -> str:
        """Return the name of the only visible model for a task, for a request that names none. Raises ApiError."""
        served = {encoder.model for encoder in self._encoders(task)}
        names = {name for name in served if visible is None or name in visible}
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
