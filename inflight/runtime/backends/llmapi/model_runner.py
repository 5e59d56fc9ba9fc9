"""TensorRT-LLM's LLM API as a `SelfSchedulingRunner`: it schedules by itself and pushes the output of each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inflight.runtime.backends.llmapi.adapters import LlmApiAdapters
from inflight.runtime.backends.llmapi.event_loop import LlmEventLoop
from inflight.runtime.backends.llmapi.library import LlmApiLibrary
from inflight.runtime.backends.llmapi.output_reader import OutputReader
from inflight.runtime.backends.llmapi.sampling_params import SamplingParamsBuilder
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.engine.interface import EngineOptions, StepOutput
from inflight.runtime.messages import EngineLimits, GenerationRequest


class LlmApiModelRunner:
    """Runs an engine directory that `inflight build --target llmapi` made, where tensorrt_llm is installed.

    At most `max_batch_size` requests are given to the library at a time, so the order and the bound of those that wait
    are ours, as with every engine. The library keeps the KV cache by its own rules: without `kv_cache_tokens` it is
    never what a request waits for here. ValueError says which of the options can't be met.
    """

    def __init__(self, options: EngineOptions) -> None:
        settings = LlmApiSettings.from_options(options)
        library = LlmApiLibrary.load()
        self._adapters = LlmApiAdapters(options.adapters, settings)
        self._sampling_params = SamplingParamsBuilder(settings, library.sampler(settings))
        self.limits = EngineLimits(
            vocabulary_size=settings.vocabulary_size,
            max_seq_len=settings.max_seq_len,
            kv_block_tokens=settings.kv_block_tokens,
            kv_blocks=settings.kv_blocks,
            max_num_sequences=settings.max_num_sequences,
        )
        self._library = library
        self._running: set[int] = set()
        self._loop = LlmEventLoop(library.create_llm(settings), library)
        self.arrivals = self._loop.arrivals

    def check(self, request: GenerationRequest) -> None:
        self._sampling_params.check(request)
        self._adapters.check(request)

    def prepare(self, waiting: Sequence[GenerationRequest]) -> None:
        """Its requests are always ready."""

    def ready(self, request: GenerationRequest) -> bool:
        return True

    def joinable(self, request: GenerationRequest, ahead: Sequence[GenerationRequest]) -> bool:
        return True

    def add(self, handle: int, request: GenerationRequest) -> None:
        beams = request.sampling.beam_width > 1
        arguments = {
            "inputs": list(request.prompt_ids),
            "sampling_params": self._library.sampling_params(self._sampling_params.build(request)),
            "streaming": not beams,
        }
        if request.adapter:
            arguments["lora_request"] = self._library.lora_request(
                **self._adapters.lora_request_arguments(request.adapter)
            )
        self._loop.add(handle, arguments, OutputReader(handle, request, self._sampling_params.end_ids_for(request)))
        self._running.add(handle)

    def removable(self, handle: int) -> bool:
        return True

    def remove(self, handle: int) -> None:
        self._running.discard(handle)
        self._loop.remove(handle)

    def step(self) -> Iterable[StepOutput]:
        """What came since the last call, of each request in one; RuntimeError once the library is dead."""
        found: dict[int, StepOutput] = {}
        for progress in self._loop.drain():
            if progress.handle not in self._running:
                continue  # it was removed after this was told
            if progress.finish_reason is not None:
                self._running.discard(progress.handle)
            before = found.get(progress.handle)
            found[progress.handle] = progress if before is None else _merge_outputs(before, progress)
        return found.values()

    def close(self) -> None:
        self._loop.close()


def _merge_outputs(before: StepOutput, after: StepOutput) -> StepOutput:
    """Two steps of one request as one: the library may have gone on twice since it was last looked after."""
    return after._replace(
        token_ids=before.token_ids + after.token_ids,
        log_probs=before.log_probs + after.log_probs,
        speculation=after.speculation or before.speculation,
    )
