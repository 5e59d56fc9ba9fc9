"""What a guide that passed its trial may still do to the engine: eat its memory, or its time."""

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
"""A guide is taken for at least so large, since it may fill memory that its trial found free."""

SUSPICIOUS_SECONDS = 0.2
"""Processor time of a step from which on it is worth a look at where it went."""

STEPS_BETWEEN_PROBES = 4
STALL_SECONDS = 0.25
SECONDS_PER_GUIDE = 0.03
"""Choosing tokens takes longer than this for each guided answer only where a grammar is ambiguous."""


class CompiledGuides:
    """Bounds the memory of compiled guides, of which the library keeps every one.

    It keeps them with the tokenizer, for one size of vocabulary; so a request to another model, whose vocabulary has
    another size, drops them all. Those in use live on until their requests end.
    """

    def __init__(self, tokenizer: openvino_genai.Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._other_size = vocabulary_size + 1
        self._other: openvino_genai.ContinuousBatchingPipeline | None = None
        self._kept: set[bytes] = set()
        self._bytes = 0

    def add(self, key: bytes, compiled_bytes: int) -> None:
        """Count a guide that is to be compiled; drops all others if they and it become too much."""
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
        # Held until it is through: a request without a reference to its handle is not run.
        generation = self._other.add_request(0, openvino.Tensor(np.zeros((1, 1), np.int64)), config)
        while self._other.has_non_finished_requests():
            self._other.step()
        del generation
        self._kept.clear()
        self._bytes = 0


class GuideStallDetector:
    """Finds the guide that makes the choosing of tokens slow, as an ambiguous one does ever more as its answer grows.

    How long a step took to choose tokens, the library tells of requests that end in it. So once steps are slow, a
    request for one token runs with every few of them; two such steps in a row that were slow for that are a stall.
    """

    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline, options: EngineOptions) -> None:
        self._pipeline = pipeline
        self._config = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True)
        set_speculation(self._config, options)
        self._numbers = count(1 << 62)  # no handle of a request is so large
        self._probe: openvino_genai.GenerationHandle | None = None
        self._steps = 0
        self._strikes = 0

    def stalled_request(self, seconds: float, guided: dict[int, int]) -> int | None:
        """The handle to end after a step that took `seconds` of processor time, if it is to blame.

        `guided` has how many tokens each guided answer has so far.
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
        """The seconds that the last step took to choose tokens, if a probe ran in it."""
        if self._probe is None or self._probe.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return None
        durations = self._probe.get_perf_metrics().raw_metrics.sampling_durations
        self._probe, self._steps = None, 0
        return float(durations[-1]) / 1e6 if durations else None
