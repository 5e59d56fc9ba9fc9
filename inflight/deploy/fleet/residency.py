"""Which models of a fleet are in memory: the decisions, without a clock, threads or processes.

Models are loaded one at a time, in the order in which requests first named them. For the first of the queue, the least
recently used models are unloaded, if that makes enough room: never a pinned one, none before the end of its minimum
residence, and none with an open request. A victim with open requests is drained: new requests for it wait, behind the
load that needs its memory, so a steady stream of requests can't keep others out, and two models replace each other
at most once a residence. A model behind the first is loaded early only if that takes nothing from those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

State = Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]

Request = Any
"""Whatever a request is known by; it is a key of dicts."""
FIRST_SECONDS = 10.0
"""How long a load takes, until one has been seen."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
"""Seconds after a failed load, before the next one; they double with each failure."""


@dataclass(frozen=True)
class Limits:
    """`memory` in bytes for all models together; times in seconds. `idle_unload` None: idle models stay."""

    memory: int
    min_residence: float = 60.0
    idle_unload: float | None = None


@dataclass(eq=False)
class ModelState:
    """A model, the `bytes` that it takes, and its requests: those that it answers, and those that wait for it."""

    name: str
    bytes: int
    pinned: bool = False
    state: State = "unloaded"
    holds: set[Request] = field(default_factory=set)
    waiting: dict[Request, int] = field(default_factory=dict)
    """Requests with their places in the order of arrival."""
    began: float = 0.0
    """When the load began, or was done."""
    last_use: float = 0.0
    load_seconds: float = FIRST_SECONDS
    failures: int = 0
    """Failed loads since the last one that succeeded."""
    retry_at: float = 0.0
    error: str = ""
    loads: int = 0
    unloads: int = 0

    @property
    def in_memory(self) -> bool:
        return self.state in ("loading", "loaded", "draining", "unloading")


@dataclass(frozen=True)
class Load:
    model: str


@dataclass(frozen=True)
class Unload:
    model: str


@dataclass(frozen=True)
class Grant:
    """The model is loaded, and stays so until the request is done."""

    request: Request


@dataclass(frozen=True)
class Refuse:
    """The model can't be loaded, for the reason of `message`; it may be asked for again in `seconds`."""

    request: Request
    message: str
    seconds: float


Action = Load | Unload | Grant | Refuse


class Residency:
    """Say what happens (`use`, `used_again`, `done`, `loaded`, `failed`, `unloaded`), then do what `step` returns.

    Times are seconds of any monotonic clock.
    """

    def __init__(self, limits: Limits, models: Iterable[ModelState]) -> None:
        """The pinned models and any other one of the models must fit into the memory together."""
        self.limits = limits
        self.models = {model.name: model for model in models}
        self._arrivals = count(1)

    @property
    def used(self) -> int:
        """The bytes of all models that are in memory."""
        return sum(model.bytes for model in self.models.values() if model.in_memory)

    def use(self, name: str, request: Request) -> None:
        """Let a request wait for a model; `step` grants or refuses it."""
        self.models[name].waiting[request] = next(self._arrivals)

    def used_again(self, name: str, now: float) -> None:
        """Note a further request of a client that keeps the model loaded already."""
        self.models[name].last_use = now

    def done(self, request: Request, now: float) -> None:
        """Forget a request that has ended, or that waits no longer."""
        for model in self.models.values():
            model.waiting.pop(request, None)
            if request in model.holds:
                model.holds.remove(request)
                model.last_use = now

    def loaded(self, name: str, now: float) -> None:
        model = self.models[name]
        model.load_seconds = now - model.began
        model.state, model.began, model.last_use = "loaded", now, now
        model.failures, model.error, model.loads = 0, "", model.loads + 1

    def failed(self, name: str, message: str, now: float) -> None:
        """Note that a load failed, or that a loaded model is lost; it has no memory now."""
        model = self.models[name]
        model.state, model.error, model.failures = "failed", message, model.failures + 1
        model.retry_at = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(model.failures - 1, 10))

    def unloaded(self, name: str, now: float) -> None:
        self.models[name].state = "unloaded"
        self.models[name].unloads += 1

    def step(self, now: float) -> list[Action]:
        """Return what to do now; call it after each event, and several times a second."""
        actions: list[Action] = [*self._refusals(now), *self._grants(now)]
        queue = self._queue()
        victims = self._victims(queue[0], now) if queue else []
        for model in self.models.values():
            if model.state in ("loaded", "draining"):
                model.state = "draining" if model in victims else "loaded"
        actions += self._grants(now)  # of those that were drained for a load that is not wanted any more
        for model in self.models.values():
            if not model.holds and (model.state == "draining" or self._idle_at(model) <= now):
                model.state = "unloading"
                actions.append(Unload(model.name))
        if not any(model.state == "loading" for model in self.models.values()):
            actions += self._load(queue, now)
        return actions

    def seconds(self, name: str, now: float) -> float:
        """Return how long a request for a model that is not loaded will probably wait; open requests of others may make
        it longer."""
        model, queue = self.models[name], self._queue()
        before = [*(each for each in self.models.values() if each.state == "loading"), *queue]
        if model not in before:
            before.append(model)
        total = 0.0 if model.state == "loading" else self._seconds_to_room(model, now)
        for each in before[: before.index(model) + 1]:
            total += max(1.0, each.load_seconds - (now - each.began if each.state == "loading" else 0.0))
        return total

    def _refusals(self, now: float) -> Iterator[Refuse]:
        for model in self.models.values():
            if model.state != "failed":
                continue
            if now >= model.retry_at:
                model.state = "unloaded"
                continue
            for request in model.waiting:
                yield Refuse(request, model.error, model.retry_at - now)
            model.waiting.clear()

    def _grants(self, now: float) -> Iterator[Grant]:
        for model in self.models.values():
            if model.state == "loaded" and model.waiting:
                yield from map(Grant, model.waiting)
                model.holds.update(model.waiting)
                model.waiting.clear()
                model.last_use = now

    def _queue(self) -> list[ModelState]:
        """Return the models to load: pinned ones first, then in the order of their first requests."""
        wanted = [
            model for model in self.models.values() if model.state == "unloaded" and (model.waiting or model.pinned)
        ]
        return sorted(wanted, key=lambda model: (not model.pinned, min(model.waiting.values(), default=0)))

    def _free(self) -> int:
        return self.limits.memory - self.used

    def _leaving(self) -> int:
        return sum(model.bytes for model in self.models.values() if model.state == "unloading")

    def _may_leave_at(self, model: ModelState) -> float:
        return model.began + self.limits.min_residence

    def _idle_at(self, model: ModelState) -> float:
        """Return when an idle model is unloaded; infinity if it is not to be."""
        if self.limits.idle_unload is None or model.pinned or model.state != "loaded" or model.holds:
            return float("inf")
        return max(model.last_use + self.limits.idle_unload, self._may_leave_at(model))

    def _victims(self, wanted: ModelState, now: float) -> Sequence[ModelState]:
        """Return the models whose memory a load needs; none if there is room, or if all that may leave are too few."""
        missing = wanted.bytes - self._free() - self._leaving()
        able = [
            model
            for model in self.models.values()
            if model.state in ("loaded", "draining") and not model.pinned and self._may_leave_at(model) <= now
        ]
        able.sort(key=lambda model: (bool(model.holds), model.last_use))
        victims: list[ModelState] = []
        while missing > sum(model.bytes for model in victims):
            if not able:
                return []
            victims.append(able.pop(0))
        for model in victims[:]:  # a later one may be large enough alone
            if missing <= sum(each.bytes for each in victims) - model.bytes:
                victims.remove(model)
        return victims

    def _load(self, queue: Sequence[ModelState], now: float) -> Iterator[Load]:
        """Load the first of the queue if there is room, else the next one that takes none of its room."""
        if not queue:
            return
        free = self._free()
        draining = sum(model.bytes for model in self.models.values() if model.state == "draining")
        spare = min(free, free + self._leaving() + draining - queue[0].bytes)
        model = queue[0] if queue[0].bytes <= free else next((each for each in queue if each.bytes <= spare), None)
        if model is not None:
            model.state, model.began = "loading", now
            yield Load(model.name)

    def _seconds_to_room(self, wanted: ModelState, now: float) -> float:
        """Return how long models whose minimum residence has not ended keep the memory that a load needs."""
        room = self._free() + self._leaving()
        others = (each for each in self.models.values() if each.state in ("loaded", "draining") and not each.pinned)
        for model in sorted(others, key=self._may_leave_at):
            if room >= wanted.bytes:
                break
            room += model.bytes
            if room >= wanted.bytes:
                return max(0.0, self._may_leave_at(model) - now)
        return 0.0
