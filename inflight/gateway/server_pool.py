"""The models and servers behind the gateway, and which server takes a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.request import ProxyHandler, build_opener

from inflight_client import AsyncClient
from inflight_client.encoder_call import Task

from inflight.gateway.adapters import AdapterFile
from inflight.gateway.backends import BackendServer
from inflight.gateway.batches.models import BatchModel
from inflight.gateway.fleet import Fleet
from inflight.gateway.http import Request
from inflight.gateway.routes_file import CHECK_SECONDS, Route, Routes, TargetSpec
from inflight.gateway.served_model import ServedModel, ServedTask
from inflight.gateway.servers import Encoder, Target, UpstreamServer
from inflight.gateway.settings import GatewaySettings, is_backend
from inflight.openai_api.errors import RETRY_SECONDS, ApiError

_Server = UpstreamServer | BackendServer
_FIRST_POLL_SECONDS = 2.0
_ENCODER_PLACES = 4096
"""Texts in flight at an encoder, most of which wait: the more there are, the less the server pads."""
_CLIP_PLACES = 512
"""Blocks of audio in flight at a model for speech."""
_ABILITIES: dict[ServedTask, str] = {
    "generate": "generates text",
    "embed": "embeds texts",
    "rerank": "reranks documents",
    "classify": "classifies texts",
    "transcribe": "transcribes audio",
    "text2text": "translates or summarizes texts",
}
_DIRECT = build_opener(ProxyHandler({}))  # the page is on the server's host
_PAGE_SECONDS = 3.0
_MAX_PAGE_BYTES = 8 * 2**20
logger = logging.getLogger("inflight.gateway")


class Candidate(NamedTuple):
    """What may answer a request, the name by which it knows the model, and the one address that a route says."""

    target: Target
    model: str
    address: str | None = None

    @property
    def label(self) -> str:
        return f"{self.model}#{self.target.number}"


def _rungs(route: Route) -> list[str]:
    """Return the models of a route's ladder."""
    return [rung.model for rung in (route.ladder.rungs if route.ladder else ()) if rung.model]


class ServerPool:
    """All servers, each watched by a task."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.adapters = AdapterFile(settings.state_path / "adapters.json")
        numbered = list(enumerate(settings.servers, 1))
        self.servers = [
            UpstreamServer(address, settings, self.adapters, self._objection, number)
            for number, address in numbered
            if not is_backend(address)
        ]
        self._backends = [BackendServer(address, number) for number, address in numbered if is_backend(address)]
        self.routes = Routes(Path(settings.routes) if settings.routes else None)
        self._routed: dict[str, _Server] = {}
        """Servers that only the routes name, by their addresses."""
        self._numbers = count(len(settings.servers) + 1)
        self.fleet = Fleet(settings.fleet, settings.max_waiting // settings.workers, self._note_loads)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Watch all servers; return once it is known whether each is ready, or after a while."""
        self._add_routed()
        self._tasks = [asyncio.create_task(server.watch()) for server in self._everywhere]
        if self.routes.path is not None:
            self._tasks.append(asyncio.create_task(self._follow_routes()))
        if self._settings.fleet:
            self._tasks.append(asyncio.create_task(self.fleet.run()))
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_POLL_SECONDS):
                if self._settings.fleet:
                    await self.fleet.known.wait()
                await asyncio.gather(*(server.polled.wait() for server in self._everywhere))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._everywhere))

    @property
    def _unknown(self) -> bool:
        """Whether no model is known yet, other than those that backends list."""
        if self.servers and not self.fleet.models:
            return not any(each.deployment or each.encoders for each in self.servers)
        return not self.models

    @property
    def _everywhere(self) -> list[_Server]:
        return [*self.servers, *self._backends, *self._routed.values()]

    def _add_routed(self) -> list[_Server]:
        """Take the servers that only the routes name, and return the new ones."""
        own = self._settings.servers
        specs = [spec for route in self.routes.current.values() for spec in route.specs]
        addresses = {spec.server for spec in specs if spec.server and spec.server not in own} - self._routed.keys()
        for each in sorted(addresses):
            number = next(self._numbers)
            backend = BackendServer(each, number) if is_backend(each) else None
            self._routed[each] = backend or UpstreamServer(each, self._settings, self.adapters, number=number)
        return [self._routed[each] for each in sorted(addresses)]

    async def _follow_routes(self) -> None:
        """Watch the servers of routes that are added while the gateway runs. Those of former routes stay."""
        missing: list[str] = []
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._tasks += [asyncio.create_task(server.watch()) for server in self._add_routed()]
            before, missing = missing, self.missing_targets(known=True)
            for each in set(missing).difference(before):
                logger.warning("%s, and requests go elsewhere.", each)

    def missing_targets(self, known: bool = False) -> list[str]:
        """Return a sentence for each target of the routes that no server has; `known`: without those that may start."""
        return [
            f"the route {name} has the target {spec.name}, which no server has"
            for name, route in self.routes.current.items()
            for spec in (*route.specs, *(TargetSpec(model=each) for each in _rungs(route)))
            if not any(self._serving(task, spec.model, spec.server) for task in _ABILITIES)
            and (spec.server is not None or spec.model not in self.fleet.models)
            and (not known or self.fleet.models or all(each.facts_known for each in self._servers_at(spec.server)))
        ]

    def _note_loads(self) -> None:
        for server, model in zip(self.servers, self.fleet.models.values(), strict=True):
            server.note_load(model["name"], model["state"] == "loaded")

    def is_loaded_for_requests(self, target: Target) -> bool:
        """Return whether a target must be held while a request is open."""
        return any(server is target for server, _ in zip(self.servers, self.fleet.models, strict=False))

    async def hold(
        self, target: UpstreamServer, request: Request, until: float, keep_alive: float | None = None
    ) -> None:
        """Wait for the server of a model that is loaded when a request names it, as `Fleet.hold` does.

        `until` is a moment of the monotonic clock. Raises ApiError 503 also if the server is not ready by then.
        """
        name = list(self.fleet.models)[self.servers.index(target)]
        await self.fleet.hold(name, request, until - time.monotonic(), keep_alive)
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await target.found_ready()
        except TimeoutError:
            raise self._not_ready(f"the model {name} was not ready in time") from None

    @property
    def ready(self) -> bool:
        targets = (each.target(task, None) for task in _ABILITIES for each in self._everywhere)
        return self.fleet.ready or any(target.ready for target in targets if target)

    def metrics_page(self) -> bytes:
        """Return the metrics page of the only server; empty if there are several, or it does not answer. Blocks.

        Of models that are loaded when a request names them, return the loads.
        """
        if self.fleet.models:
            return self.fleet.page()
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

    def places(self, task: ServedTask, model: str, address: str | None = None) -> int:
        """How many answers, or texts, of a model may be in flight at the servers to which a target may send them.

        --max-in-flight is divided among the models that generate text as their servers' own places are.
        """
        serving = [each for each in self._serving(task, model, address) if each.ready]
        if task != "generate":
            return (_CLIP_PLACES if task == "transcribe" else _ENCODER_PLACES) * len(serving)
        places = sum(each.places for each in serving if not isinstance(each, Encoder))
        if self._settings.max_in_flight is None:
            return places
        named = {spec.server for route in self.routes.current.values() for spec in route.specs}
        routed = [server for address, server in self._routed.items() if address in named]
        everywhere = sum(each.places for each in (*self.servers, *self._backends, *routed) if each.ready)
        return self._settings.max_in_flight * places // (everywhere or 1)

    def running(self, task: ServedTask, model: str, address: str | None = None) -> int:
        """How many of these places are computed at once; encoders choose among all texts that they have."""
        places = self.places(task, model, address)
        if task != "generate":
            return places
        serving = [each for each in self._serving(task, model, address) if each.ready]
        return min(places, sum(each.sequences or each.places for each in serving if not isinstance(each, Encoder)))

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
        generators: Iterable[ServedModel] = (
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
        if self.fleet.models:
            own = {each.name: each for each in generators}
            generators = (
                replace(own.get(name) or ServedModel(name, "generate", each["max_seq_len"]), state=each["state"])
                for name, each in self.fleet.models.items()
            )
        foreign = (ServedModel(name, None, None) for each in self._backends for name in each.models)
        models = {each.name: each for each in (*foreign, *generators, *encoders.values())}
        return list((models | {name: self._served_route(name) for name in self.routes.current}).values())

    def _served_route(self, name: str) -> ServedModel:
        """Return a route as a model: what its targets have in common, as far as they are known."""
        specs = self.routes.current[name].targets
        for task in _ABILITIES:
            if found := [each for spec in specs for each in self._serving(task, spec.model, spec.server)]:
                return ServedModel(
                    name, task, min((each.max_seq_len for each in found if each.max_seq_len), default=None)
                )
        return ServedModel(name, None, None)

    def encoder(self, task: Task, model: str) -> AsyncClient:
        """Return a client of an encoder of one of the servers. Raises ApiError as `candidates` does."""
        target = self.candidates(task, model)[0].target
        if not isinstance(target, Encoder):
            raise ApiError(f"the model {model[:100]!r} is at no Triton server", "unsupported_input", "model")
        return target.server.client

    def for_batches(self, task: ServedTask) -> dict[str, BatchModel] | None:
        """Return the models for a task by their names; None if no model is known.

        Rows go to the servers without a wait for loads, so of the models that may be unloaded there is none.
        """
        models: dict[str, BatchModel] = {}
        for server in self.servers:
            names: Mapping[str, int | None] = {}
            if task != "generate":
                names = {server.encoders[task].model: None} if task in server.encoders else {}
            elif server.deployment and self.fleet.models.get(server.model, {"pinned": True})["pinned"]:
                names = {**server.adapters, server.model: None}
            for name, adapter in names.items():
                model = models.setdefault(name, BatchModel((), adapter))
                if model.adapter == adapter:  # under another number, it may be another one
                    models[name] = model._replace(servers=(*model.servers, server.given_address))
        return None if self._unknown else models

    def ready_model(self, name: str) -> ServedModel:
        """Return a model by its name. Raises ApiError 404, or 503 if it is not ready and no request makes it so."""
        model = next((each for each in self.models if each.name == name), None)
        if model is not None and model.state is not None:
            return model
        self.candidates(model.task if model is not None and model.task else "generate", name)
        assert model is not None
        return model

    def candidates(
        self,
        task: ServedTask,
        model: str,
        visible: Container[str] | None = None,
        request_id: str = "",
        tier: str | None = None,
        unloaded: bool = False,
    ) -> list[Candidate]:
        """Return what may answer a request and is ready, in the order in which it is asked.

        With `unloaded`, return also the servers of models that must be loaded first. The targets of a route come as its
        weights say for the request's id, the servers of a model by what they have in flight, and those that have just
        failed come last. Raises ApiError 400 or 404, which name the visible models alone (by default all), or 503.
        """
        route = self.routes.current.get(model)
        specs = [(each.model, each.server) for each in route.order(request_id, tier)] if route else [(model, None)]
        if found := [candidate for name, address in specs for candidate in self.at(task, name, address, unloaded)]:
            return sorted(found, key=lambda each: each.target.suspect)
        models = self.models
        known = next((each for each in models if each.name == model), None)
        if self._unknown or (known is not None and known.task in (None, task)):
            raise self._not_ready()
        raise self._no_model(model, task, visible)

    def at(self, task: ServedTask, model: str | None, address: str | None, unloaded: bool = False) -> list[Candidate]:
        """Return what is ready of a target, the least busy first; with `unloaded`, also what must be loaded first."""
        serving = sorted(self._serving(task, model, address), key=lambda each: each.in_flight)
        found = [Candidate(each, model or each.model, address) for each in serving if each.ready]
        if unloaded and not found and task == "generate" and address is None and model in self.fleet.models:
            return [Candidate(self.servers[list(self.fleet.models).index(model)], model)]
        return found

    def choose(self, model: str, visible: Container[str] | None = None) -> UpstreamServer:
        """Return the server that generates text with a model. Raises ApiError as `candidates` does."""
        for candidate in self.candidates("generate", model, visible):
            if isinstance(candidate.target, UpstreamServer):
                return candidate.target
        raise ApiError(f"the server of the model {model[:100]!r} has no tokenizer here", "unsupported_input", "model")

    def _serving(self, task: ServedTask, model: str | None, address: str | None = None) -> list[_Server | Encoder]:
        """Return what does a task with a model, ready or not; with an address, only there and also with any model."""
        return [target for each in self._servers_at(address) if (target := each.target(task, model)) is not None]

    def _servers_at(self, address: str | None) -> list[_Server]:
        """Return the servers to which a target may send requests."""
        if address is None:
            return [*self.servers, *self._backends]
        return [each for each in self._everywhere if each.given_address == address]

    def only_encoder(self, task: Task, visible: Container[str] | None = None) -> str:
        """Return the name of the only visible model for a task, for a request that names none. Raises ApiError."""
        served = {each.model for each in self._serving(task, None)}
        names = {name for name in served if visible is None or name in visible}
        if len(names) == 1:
            return names.pop()
        if self._unknown:
            raise self._not_ready()
        if names:
            problem = f"the request has no model; set it to one that {_ABILITIES[task]}: {', '.join(sorted(names))}"
        else:
            problem = f"no served model {_ABILITIES[task]}; serve one with `inflight serve --{task} ENGINE`"
        raise ApiError(problem, "invalid_request", "model")

    def _not_ready(self, why: str = "the server is starting or restarting") -> ApiError:
        return ApiError(
            f"{why}; send the request again later",
            "model_not_ready",
            status=503,
            headers={"retry-after": str(RETRY_SECONDS)},
        )

    def _no_model(self, model: str, task: ServedTask, visible: Container[str] | None) -> ApiError:
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
            f"the model {model[:100]!r} {_ABILITIES[other.task or task]}; send a model that {_ABILITIES[task]}"
            f" ({able})",
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
