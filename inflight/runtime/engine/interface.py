"""The engine's interfaces: `Engine`, which Triton models use, and `ModelRunner`, which adapts a library."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterable
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
    """Generates tokens and pushes events, so a library with its own scheduler fits too."""

    def submit(self, request: GenerationRequest, on_event: EventSink) -> int:
        """Submit a request and return its handle; `on_event` gets its events, in a thread of the engine.

        `on_event` must return quickly and must not call the engine: it blocks the events of other requests. Raises
        RequestError for a request that the engine can't run.
        """

    def cancel(self, handle: int) -> None:
        """End a request early; its last event has the reason `cancelled`. Unknown and ended handles are ignored."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Stop the engine; running requests are cancelled."""


class StepOutput(NamedTuple):
    """The result of one step for one request; the fields are those of TokenEvent.

    An output without tokens says that the prompt is computed; a beam search, which returns its tokens at the end, needs
    it. `speculation` is cumulative; the latest counts, since a request may end early.
    """

    handle: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    log_probs: tuple[float, ...] = ()
    beams: tuple[Beam, ...] = ()
    speculation: SpeculationStats | None = None
    error: tuple[str, str] | None = None
    prompt_log_probs: tuple[float, ...] = ()
    cached_tokens: int | None = None


class AdapterLoaded(NamedTuple):
    """Told once the LoRA adapter of a path is in use, or why it can't be."""

    path: str
    error: str | None


class ModelRunner(Protocol):
    """A library that runs one forward pass for all its requests per call, and owns the paged KV cache."""

    limits: EngineLimits
    prefilled: int
    """Prompt tokens computed so far."""

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError if this engine can't run the request; called once, before the request is queued."""

    def add(self, handle: int, request: GenerationRequest) -> None:
        """Add a request to the running ones; its worst case fits the cache.

        The caller handles stop words and deadline. An exception ends this request only: a RequestError with its
        code.
        """

    def remove(self, handle: int) -> None:
        """Drop a running request and free its KV blocks before the next forward pass."""

    def step(self) -> Iterable[StepOutput]:
        """Run one forward pass; return output for each request that got a token or ended."""


@runtime_checkable
class AdapterLoader(Protocol):
    """A model runner that takes further LoRA adapters while it runs."""

    def prepare_adapter(self, path: str) -> Callable[[], None]:
        """Read an adapter, in another thread than `step`, one at a time; return what puts it in use between two steps.

        Its number is one more than that of the last one. Raises ValueError if it can't be used.
        """


@runtime_checkable
class SelfSchedulingRunner(ModelRunner, Protocol):
    """A library with its own scheduler: `step` returns the output since the last call without blocking.

    It manages the KV cache. An exception of `step` means that the library is dead, even
    while no request runs.
    """

    arrivals: socket.socket
    """Readable when `step` has output."""

    def close(self) -> None:
        """Shut the library down within seconds; processes that it leaves behind end with the engine's process."""


@dataclass(frozen=True)
class EngineOptions:
    """All options of an engine; sent to its process.

    A step computes at most `max_num_tokens` tokens, and beside running answers only so much of prompts that it takes at
    most `itl_bound` times as long as without them (0: as much as there is room for). Tenants reuse each other's
    prefixes only with `share_prefixes`. `max_queue_size` limits the waiting requests (0: no limit).
    `skip_special_tokens` is that of postprocessing: text stop words are searched for in its text. With `draft_dir`, the
    directory of a draft engine, or `prompt_lookup`, the engine speculates with `num_draft_tokens` at a time. It
    computes on `threads` threads (0: one for each core). `adapters` are the files of the LoRA adapters, which requests
    select by number from 1. A working engine sends its statistics every `stats_period_s`, and after an answer's first
    tokens only every `stream_interval` tokens an event. If it is `reproducible`, an answer is the same to the last bit
    whatever runs beside it.
    """

    engine: str
    model_dir: str
    kv_cache_tokens: int
    max_num_sequences: int = 64
    max_num_tokens: int = 256
    itl_bound: float = 2.0
    max_queue_size: int = 0
    skip_special_tokens: bool = True
    kv_cache_reuse: bool = True
    share_prefixes: bool = False
    chunked_context: bool = True
    draft_dir: str = ""
    prompt_lookup: bool = False
    num_draft_tokens: int = 5
    stats_period_s: float = 0.1
    stream_interval: int = 1
    threads: int = 0
    adapters: tuple[str, ...] = ()
    reproducible: bool = False
    extra: dict[str, str] = field(default_factory=dict)


def load_model_runner(options: EngineOptions) -> ModelRunner:
    """Load the library and model of `options.engine`."""
    if options.engine not in BACKENDS:
        raise ValueError(f"there is no engine {options.engine!r}; choose one of {', '.join(sorted(BACKENDS))}")
    module, name = BACKENDS[options.engine].split(":")
    runner: ModelRunner = getattr(importlib.import_module(module), name)(options)
    return runner
