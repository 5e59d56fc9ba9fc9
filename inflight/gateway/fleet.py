"""Models that are loaded when a request names them: the gateway's side of inflight/deploy/fleet.

A process of the gateway has one connection, and asks there for each request whose model is one of them; what the lines
are, inflight/deploy/fleet/fleet.py says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inflight.gateway.http import DisconnectedError, Request, cancel_on_disconnect
from inflight.openai_api.errors import ApiError
from inflight.openai_api.frames import KEEP_ALIVE

_RECONNECT_SECONDS = 0.5
_TELL_SECONDS = 1.0
_MAX_LINE_BYTES = 2**20
logger = logging.getLogger("inflight.gateway")


@dataclass(eq=False)
class _Waiter:
    """A request that waits for its model, until `until` of the event loop's clock."""

    model: str
    until: float
    loaded: asyncio.Future[None]


@dataclass(eq=False)
class _Hold:
    """What keeps a model loaded: the request of that number, and those that came while it was open."""

    model: str
    number: int
    requests: int = 1


class Fleet(Collector):
    """What is known of the models, and the requests that wait for one. For one event loop."""

    def __init__(self, path: str, max_waiting: int, on_change: Callable[[], None]) -> None:
        """`on_change` is called after each change of `models`."""
        self.models: dict[str, dict[str, Any]] = {}
        """By name, in the order of the servers' addresses; see `Fleet._described` of inflight/deploy/fleet."""
        self.known = asyncio.Event()
        """Set once the models are known."""
        self._path, self._max_waiting, self._on_change = path, max_waiting, on_change
        self._memory = 0
        self._numbers = count(1)
        self._waiting: dict[int, _Waiter] = {}
        self._holds: dict[str, _Hold] = {}
        """By model, those that further requests share."""
        self._told: dict[str, float] = {}
        """When it last sent that a model's hold is shared."""
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Keep the connection."""
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._path, limit=_MAX_LINE_BYTES)
                with suppress(OSError, ValueError):
                    while line := await reader.readline():
                        self._receive(json.loads(line))
            except OSError as error:
                logger.warning("The process that loads models does not answer: %s", error)
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
                self._holds.clear()
                for waiter in self._waiting.values():
                    self._refuse(waiter, "the server is stopping or starting", _RECONNECT_SECONDS)
            await asyncio.sleep(_RECONNECT_SECONDS)

    @property
    def ready(self) -> bool:
        """Whether a model can be asked for."""
        return self._writer is not None

    async def hold(self, name: str, request: Request, seconds: float, keep_alive: float | None) -> None:
        """Wait at most `seconds` until a model is loaded; it stays so until the request is closed.

        With `keep_alive`, a stream begins after so many seconds, and gets a comment as often. Raises ApiError 503 if
        the wait is, or will probably be, longer, or if the model can't be loaded, 429 if too many wait, and
        DisconnectedError.
        """
        hold = self._holds.get(name)
        if hold is not None and self.models[name]["state"] == "loaded" and not self.models[name]["draining"]:
            hold.requests += 1
            request.on_close(lambda: self._release(hold))
            if time.monotonic() - self._told.get(name, -math.inf) >= _TELL_SECONDS:
                self._told[name] = time.monotonic()
                self._send({"used": name})
            return
        if len(self._waiting) >= self._max_waiting:
            raise ApiError(
                f"{len(self._waiting)} requests wait for models; send the request again later",
                "overloaded",
                status=429,
                headers={"retry-after": "1"},
            )
        number, loop = next(self._numbers), asyncio.get_running_loop()
        self._send({"use": number, "model": name})
        own = _Hold(name, number)
        request.on_close(lambda: self._release(own))
        waiter = self._waiting[number] = _Waiter(name, loop.time() + seconds, loop.create_future())
        try:
            if not await cancel_on_disconnect(request, lambda: self._wait(waiter, request, keep_alive)):
                raise DisconnectedError
        finally:
            del self._waiting[number]
        self._holds.setdefault(name, own)

    async def _wait(self, waiter: _Waiter, request: Request, keep_alive: float | None) -> None:
        loop = asyncio.get_running_loop()
        while not waiter.loaded.done():
            left = waiter.until - loop.time()
            if left <= 0:
                raise _not_ready(f"the model {waiter.model} was not loaded in time", 1.0)
            await asyncio.wait((waiter.loaded,), timeout=left if keep_alive is None else min(left, keep_alive))
            if keep_alive is not None and not waiter.loaded.done():
                if not request.started:
                    await request.start_stream()
                await request.write(KEEP_ALIVE)
        waiter.loaded.result()

    def _release(self, hold: _Hold) -> None:
        hold.requests -= 1
        if not hold.requests:
            if self._holds.get(hold.model) is hold:
                del self._holds[hold.model]
            self._send({"done": hold.number})

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "models" in message:
            self.models = {model["name"]: model for model in message["models"]}
            self._memory = message["memory"]
            self._on_change()
            self.known.set()
            return
        waiter = self._waiting.get(message["request"])
        if waiter is None or waiter.loaded.done():
            return
        match message["state"]:
            case "loaded":
                waiter.loaded.set_result(None)
            case "failed":
                self._refuse(waiter, message["message"], message["seconds"])
            case "waiting" if asyncio.get_running_loop().time() + message["seconds"] > waiter.until:
                self._refuse(waiter, f"the model {waiter.model} is not loaded", message["seconds"])

    def _refuse(self, waiter: _Waiter, why: str, seconds: float) -> None:
        if not waiter.loaded.done():
            waiter.loaded.set_exception(_not_ready(why, seconds))

    def _send(self, message: Mapping[str, Any]) -> None:
        """Raise ApiError 503 if there is no connection; what was asked for over a lost one is forgotten with it."""
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")
        elif "use" in message:
            raise _not_ready("the server is stopping or starting", 1.0)

    def page(self) -> bytes:
        """Return the metrics of all models, which are the same in each process of the gateway."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        limit = GaugeMetricFamily("inflight_models_memory_limit_bytes", "Memory of all loaded models.")
        limit.add_metric((), self._memory)
        yield limit
        families: tuple[tuple[type[Any], str, str, Callable[[Mapping[str, Any]], float | None]], ...] = (
            (GaugeMetricFamily, "loaded", "1 if the model is loaded.", lambda model: model["state"] == "loaded"),
            (GaugeMetricFamily, "memory_bytes", "Estimated memory while it is loaded.", lambda model: model["bytes"]),
            (CounterMetricFamily, "loads", "Loads that succeeded.", lambda model: model["loads"]),
            (CounterMetricFamily, "unloads", "Unloads.", lambda model: model["unloads"]),
            (GaugeMetricFamily, "load_seconds", "Time of the last load.", lambda model: model["load_seconds"]),
        )
        for kind, name, what, read in families:
            family = kind(f"inflight_model_{name}", what, labels=("model",))
            for model in self.models.values():
                if (value := read(model)) is not None:
                    family.add_metric((model["name"],), value)
            yield family


def _not_ready(why: str, seconds: float) -> ApiError:
    wait = max(1, math.ceil(seconds))
    return ApiError(
        f"{why}; send the request again in {wait} s",
        "model_not_ready",
        status=503,
        headers={"retry-after": str(wait)},
    )
