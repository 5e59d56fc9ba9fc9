"""TensorRT-LLM's LLM API as a `SelfSchedulingRunner`: it schedules requests and pushes the output of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from inflight.common.request_error import RequestError
from inflight.runtime.backends.llmapi.event_loop import LlmEventLoop
from inflight.runtime.backends.llmapi.library import LlmApiLibrary
from inflight.runtime.backends.llmapi.output_reader import OutputReader
from inflight.runtime.backends.llmapi.sampling_params import SamplingParamsBuilder
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.engine.interface import EngineOptions, StepOutput
from inflight.runtime.messages import EngineLimits, GenerationRequest

CONFIG_FILE = "adapter_config.json"


class LlmApiAdapters:
    """The LoRA adapters of a deployment. Raises ValueError if one is unusable or the engine was built without LoRA."""

    def __init__(self, paths: tuple[str, ...], settings: LlmApiSettings) -> None:
        self._enabled = bool(settings.arguments.get("enable_lora"))
        if paths and not self._enabled:
            raise ValueError(
                "the engine takes no LoRA adapters; build it with enable_lora and lora_config, or leave them out"
            )
        self._directories = [_directory(Path(path)) for path in paths]

    def prepare(self, path: str) -> Callable[[], None]:
        """The library reads an adapter with the first request that names it."""
        if not self._enabled:
            raise ValueError("the engine takes no LoRA adapters; build it with enable_lora and lora_config")
        return partial(self._directories.append, _directory(Path(path)))

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError (`invalid_parameter`) if the deployment doesn't have the request's adapter."""
        if request.adapter > len(self._directories):
            raise RequestError(
                f"lora_task_id is {request.adapter}, and the deployment has {len(self._directories)} adapters; choose"
                " one of them, or leave it out",
                "invalid_parameter",
            )

    def lora_request_arguments(self, number: int) -> dict[str, Any]:
        """Return the arguments of the library's LoRARequest."""
        directory = self._directories[number - 1]
        return {"lora_name": f"{number}-{directory.name}", "lora_int_id": number, "lora_path": str(directory)}


def _directory(path: Path) -> Path:
    directory = path if path.is_dir() else path.parent
    if not (directory / CONFIG_FILE).is_file():
        raise ValueError(
            f"{path} has no {CONFIG_FILE} beside it, and the LLM API reads whole PEFT directories; give one"
        )
    return directory


class LlmApiModelRunner:
    """Runs an engine directory of `inflight build --target llmapi`, where tensorrt_llm is installed.

    The library gets at most `max_batch_size` requests at a time, so the scheduler decides the order and the number of
    waiting requests, as with every engine. The library manages the KV cache: without `kv_cache_tokens`, no request
    waits for KV blocks here. Raises ValueError for options that the library doesn't support.
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
        self.prefilled = 0
        self._loop = LlmEventLoop(library.create_llm(settings), library)
        self.arrivals = self._loop.arrivals

    def prepare_adapter(self, path: str) -> Callable[[], None]:
        return self._adapters.prepare(path)

    def check(self, request: GenerationRequest) -> None:
        self._sampling_params.check(request)
        self._adapters.check(request)

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
        self.prefilled += len(request.prompt_ids)

    def remove(self, handle: int) -> None:
        self._running.discard(handle)
        self._loop.remove(handle)

    def step(self) -> Iterable[StepOutput]:
        """Return the output since the last call, merged by request. Raises RuntimeError once the library is dead."""
        outputs: dict[int, StepOutput] = {}
        for progress in self._loop.drain():
            if progress.handle not in self._running:
                continue  # removed after it produced this output
            if progress.finish_reason is not None:
                self._running.discard(progress.handle)
            before = outputs.get(progress.handle)
            outputs[progress.handle] = progress if before is None else _merge_outputs(before, progress)
        return outputs.values()

    def close(self) -> None:
        self._loop.close()


def _merge_outputs(before: StepOutput, after: StepOutput) -> StepOutput:
    """Merge two outputs of one request: the library may make two steps between two calls."""
    return after._replace(
        token_ids=before.token_ids + after.token_ids,
        log_probs=before.log_probs + after.log_probs,
        speculation=after.speculation or before.speculation,
    )
