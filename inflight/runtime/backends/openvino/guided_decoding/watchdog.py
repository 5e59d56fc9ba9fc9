"""Limits on what a guide that passed its probe may still take from the engine: memory and time."""

from __future__ import annotations

from itertools import count

import numpy as np
import openvino
import openvino_genai

from inflight.runtime.backends.openvino.guided_decoding.probe import dummy_pipeline
from inflight.runtime.backends.openvino.speculation import set_speculation
from inflight.runtime.engine.interface import EngineOptions

MAX_COMPILED_BYTES = 256 << 20
MIN_GUIDE_BYTES = 64 << 10
"""Lower bound of a guide's size, since it may use memory that its probe found free."""

SUSPICIOUS_SECONDS = 0.2
"""Processor time of a step above which the time to choose tokens is measured."""

STEPS_BETWEEN_PROBES = 4
STALL_SECONDS = 0.25
SECONDS_PER_GUIDE = 0.03
"""Choosing tokens takes longer than this per guided answer only if a grammar is ambiguous."""


class CompiledGuides:
    """Bounds the memory of compiled guides, which the library never frees by itself.

    The library keeps them with the tokenizer, for one vocabulary size. A request to another model with another
    vocabulary size therefore drops them all. Guides in use remain until their requests end.
    """

    def __init__(self, tokenizer: openvino_genai.Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._other_size = vocabulary_size + 1
        self._other: openvino_genai.ContinuousBatchingPipeline | None = None
        self._kept: set[bytes] = set()
        self._bytes = 0

    def add(self, key: bytes, compiled_bytes: int) -> None:
        """Count a guide that is about to be compiled; drop all others if the total exceeds the limit."""
        if key in self._kept:
            return
        size = max(compiled_bytes, MIN_GUIDE_BYTES)
        if self._bytes + size > MAX_COMPILED_BYTES:
            self._drop()
        self._kept.add(key)
        self._bytes += size

    def _drop(self) -> None:
        if self._other is None:
            self._other = dummy_pipeline(self._tokenizer, self._other_size)
        config = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True)
        # The handle keeps the request alive: the library doesn't run a request without a reference to its handle.
        generation = self._other.add_request(0, openvino.Tensor(np.zeros((1, 1), np.int64)), config)
        while self._other.has_non_finished_requests():
            self._other.step()
        del generation
        self._kept.clear()
        self._bytes = 0


class GuideStallDetector:
    """Finds the guide that slows down choosing tokens; an ambiguous one gets slower as its answer grows.

    The library reports how long a step took to choose tokens only for requests that end in it. Once steps are slow, a
    request for one token therefore runs with some of them; two such steps in a row that are slow for that are a stall.
    """

    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline, options: EngineOptions) -> None:
        self._pipeline = pipeline
        self._config = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True)
        set_speculation(self._config, options)
        self._numbers = count(1 << 62)  # no request's handle is this large
        self._probe: openvino_genai.GenerationHandle | None = None
        self._steps = 0
        self._strikes = 0

    def stalled_request(self, seconds: float, guided: dict[int, int]) -> int | None:
        """Return the handle to end after a step of `seconds` of processor time, or None if no guide is the cause.

        `guided` maps the handle of each guided answer to its number of tokens.
        """
        self._steps += 1
        choosing = self._sampling_seconds()
        if not guided:
            self._strikes = 0
            return None
        if choosing is not None:
            stalled = choosing > max(STALL_SECONDS, SECONDS_PER_GUIDE * len(guided))
            self._strikes = self._strikes + 1 if stalled else 0
        if self._strikes == 2:
            self._strikes = 0
            return max(guided, key=lambda handle: guided[handle])
        if seconds > SUSPICIOUS_SECONDS and self._probe is None and self._steps >= STEPS_BETWEEN_PROBES:
            self._start_probe()
        return None

    def _start_probe(self) -> None:
        token = openvino.Tensor(np.zeros((1, 1), np.int64))
        self._probe = self._pipeline.add_request(next(self._numbers), token, self._config)

    def _sampling_seconds(self) -> float | None:
        """Return the seconds that the last step took to choose tokens, or None if no probe ran in it."""
        if self._probe is None or self._probe.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return None
        durations = self._probe.get_perf_metrics().raw_metrics.sampling_durations
        self._probe, self._steps = None, 0
        return float(durations[-1]) / 1e6 if durations else None
