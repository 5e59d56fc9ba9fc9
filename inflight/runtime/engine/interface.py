"""The engine seam: `Engine`, as models see it, and `ModelRunner`, as a library is adapted to it."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from inflight.runtime.messages import (
    Beam,
    EngineLimits,
    EngineStats,
    EventSink,
    FinishReason,
    GenerationRequest,
    SpeculationStats,
)

BACKENDS = {
    "openvino": "inflight.runtime.backends.openvino.model_runner:OpenVinoModelRunner",
    "fake": "inflight.runtime.engine.fake:FakeModelRunner",
    "llmapi": "inflight.runtime.backends.llmapi.model_runner:LlmApiModelRunner",
}


class Engine(Protocol):
    """Anything that generates tokens: events are pushed, so an engine that owns its scheduler fits too."""

    def submit(self, request: GenerationRequest, on_event: EventSink) -> int:
        """Take a request; its events come to `on_event`, from a thread of the engine's. Returns its handle.

        `on_event` returns soon and does not call the engine: other requests' events wait behind it.
        Raises RequestError for a request that the engine can't take.
        """

    def cancel(self, handle: int) -> None:
        """End a request early; its last event says `cancelled`. An unknown or ended handle is no error."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Stop; requests that run are cancelled."""


class StepOutput(NamedTuple):
    """What one step did to one request; the fields are those of TokenEvent.

    One without tokens says that the prompt is computed: a beam search, which keeps its tokens to its end, tells it so.
    `speculation` counts from the request's beginning; what was told last counts, since a request may be ended early.
    """

    handle: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    log_probs: tuple[float, ...] = ()
    beams: tuple[Beam, ...] = ()
    speculation: SpeculationStats | None = None
    error: tuple[str, str] | None = None


class ModelRunner(Protocol):
    """A library that advances all its requests by one forward pass a call, and owns the paged KV cache."""

    limits: EngineLimits

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError for what this engine can't do; called once, before the request is queued."""

    def ready(self, request: GenerationRequest) -> bool:
        """Whether `add` may be called; asked once for each request, and before each step for those that were not.

        It answers at once: False while its guide is still to be tried elsewhere, and others pass it meanwhile. Raises
        RequestError where the guide proved impossible, which ends this request alone.
        """

    def prepare(self, waiting: Sequence[GenerationRequest]) -> None:
        """Go on with what keeps these requests, in order of arrival, from being ready; called before each step.

        It may wait for some milliseconds where nothing else is to be done.
        """

    def joinable(self, request: GenerationRequest, ahead: Sequence[GenerationRequest]) -> bool:
        """Whether its prompt may be computed beside those that are, and beside `ahead`, which begin with it or wait.

        Asked before each step for a waiting request that fits and is ready; others pass it meanwhile.
        """

    def add(self, handle: int, request: GenerationRequest) -> None:
        """Put a request, whose worst case fits the cache, among the running ones, which have the same adapter.

        Stop words, deadline and draft are looked after by who calls. What it raises ends this request alone: a
        RequestError with its code.
        """

    def removable(self, handle: int) -> bool:
        """Whether a running request may be removed now; if not, then once a step has told of it."""

    def remove(self, handle: int) -> None:
        """Drop a running request and free its KV blocks before the next forward pass."""

    def step(self) -> Iterable[StepOutput]:
        """One forward pass for all; what came of it, for those that got a token or ended."""


@runtime_checkable
class SelfSchedulingRunner(ModelRunner, Protocol):
    """A library that owns its scheduler and goes on by itself: `step` tells what came since the last one, and waits
    for nothing.

    It keeps the KV cache by its own rules, and mixes adapters in a batch. What `step` raises says that the library is
    dead, also while nothing runs.
    """

    arrivals: socket.socket
    """Readable as soon as `step` has something to tell."""

    def close(self) -> None:
        """End the library, within seconds; processes that it leaves behind are ended with the engine's own."""


@dataclass(frozen=True)
class EngineOptions:
    """Everything that an engine is started with; travels to its process.

    `max_queue_size` bounds the requests that wait (0: no bound). `skip_special_tokens` is postprocessing's: stop words
    given as text are looked for in the text that it makes. With `draft_dir`, the directory of a small engine, or
    with `prompt_lookup`, the engine speculates with `num_draft_tokens` at a time. `adapters` are the files of the LoRA
    adapters that requests name by number, from 1. While it works, the engine tells every `stats_period_s` how
    it stands.
    """

    engine: str
    model_dir: str
    kv_cache_tokens: int
    max_num_sequences: int = 64
    max_num_tokens: int = 96
    max_queue_size: int = 0
    skip_special_tokens: bool = True
    kv_cache_reuse: bool = True
    chunked_context: bool = True
    draft_dir: str = ""
    prompt_lookup: bool = False
    num_draft_tokens: int = 5
    stats_period_s: float = 0.1
    adapters: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)


def load_model_runner(options: EngineOptions) -> ModelRunner:
    """Load the adapter that `options.engine` names, and with it the library and the model."""
    if options.engine not in BACKENDS:
        raise ValueError(f"no engine is called {options.engine!r}; there are {', '.join(sorted(BACKENDS))}")
    module, name = BACKENDS[options.engine].split(":")
    stepper: ModelRunner = getattr(importlib.import_module(module), name)(options)
    return stepper
