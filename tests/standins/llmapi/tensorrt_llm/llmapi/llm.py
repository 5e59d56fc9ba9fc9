"""A stand-in for NVIDIA's tensorrt_llm.llmapi.llm: LLM and the answers that it gives, fed by a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .. import version
from ..executor import CppExecutorError, LoRARequest, RequestError
from ..sampling_params import SamplingParams
from .encoder import DEFAULT_MAX_BATCH_SIZE, EncoderExecutor, EncoderOutput
from .llm_args import TorchLlmArgs

WORKER = Path(__file__).parents[1] / "worker.py"


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """`token_ids` and `logprobs` grow; the `_diff`s are what the last response added."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    _last_token_ids_len: int = field(default=0, init=False, repr=False)

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]


class RequestOutput:
    """An answer on its way; as upstream's, it can be awaited only where it was made: in a running event loop."""

    def __init__(
        self, request_id: int, prompt: list[int], params: SamplingParams, abort: Callable[[int], None]
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt
        self.context_logits = None
        self.error: str | None = None
        self.outputs = [CompletionOutput(index) for index in range(params.n)]
        self._params = params
        self._abort = abort
        self._done = False
        self._aborted = False
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    @property
    def finished(self) -> bool:
        return self._done

    def abort(self) -> None:
        self._abort(self.request_id)
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._done:
            raise StopAsyncIteration
        self._handle(await self._queue.get())
        return self

    def _handle(self, response: Any) -> None:
        if isinstance(response, BaseException):
            raise response
        if response["error"] is not None:
            if not version.CHECKS_HEALTH:
                raise RequestError(response["error"])
            self.error, self._done = response["error"], True
            return
        self._done = response["final"]
        for output, told in zip(self.outputs, response["outputs"], strict=True):
            output._last_token_ids_len = len(output.token_ids)
            output.token_ids = output.token_ids + told["token_ids"]
            if self._params.logprobs:
                output.logprobs = output.logprobs + [_log_prob(entry) for entry in told["logprobs"]]
                output.cumulative_logprob = told["cumulative_logprob"]
            if self._done:
                self._finish(output, told["finish_reason"])

    def _finish(self, output: CompletionOutput, reason: str) -> None:
        if reason not in ("stop", "length", "timeout", "cancelled"):
            raise ValueError(f"Unknown finish reason: {reason}")
        output.finish_reason = reason
        stops = self._params.stop_token_ids or []
        if reason == "stop" and output.token_ids[-1] in stops:
            output.stop_reason = output.token_ids[-1]
            output.token_ids = output.token_ids[:-1]


class LLM:
    """Starts `worker.py`, and hands its responses to whom they are for."""

    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            if key not in TorchLlmArgs.model_fields:
                raise ValueError(f"{type(self).__name__} got invalid argument: {key}")
        self.args = TorchLlmArgs(model=model, tensor_parallel_size=tensor_parallel_size, dtype=dtype, **kwargs)
        if version.CHECKS_HEALTH and self.args.sampler_type == "TRTLLMSampler":
            raise ValueError("sampler_type TRTLLMSampler was removed; TorchSampler is the only sampler")
        asked = Path(model) / "standin.json"
        self._wishes: dict[str, Any] = json.loads(asked.read_text()) if asked.is_file() else {}
        if "constructor_error" in self._wishes:
            raise RuntimeError(self._wishes["constructor_error"])
        self._results: dict[int, RequestOutput] = {}
        self._last_id = 1
        self._shutting_down = False
        self._executor: LLM | None = self
        self._encoder_executor: EncoderExecutor | None = None
        if getattr(self.args, "encode_only", False):
            self._executor, self._encoder_executor = None, EncoderExecutor(self.args)
            return
        self._start()
        if "late_error" in self._wishes:
            self._fail_late(Path(model), self._wishes["late_error"])

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._worker = subprocess.Popen(
            [sys.executable, str(WORKER), str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        wishes = {
            "tops": self.args.sampler_type != "TRTLLMSampler",
            "max_batch_size": self.args.max_batch_size or DEFAULT_MAX_BATCH_SIZE,
            **self._wishes,
        }
        self._connection.send(wishes)
        threading.Thread(target=self._dispatch, daemon=True).start()

    def _fail_late(self, model: Path, error: str) -> None:
        """As where another rank finds no memory: the worker blocks, and receives nothing, as one in a CUDA call."""
        os.kill(self._worker.pid, signal.SIGSTOP)
        (model / "worker.pid").write_text(str(self._worker.pid))
        raise RuntimeError(error)

    def generate_async(
        self,
        inputs: list[int] | dict[str, Any],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self._encoder_executor is not None:
            raise RuntimeError("generate_async() is not available with encode_only=True; use encode()")
        if self._executor is None or self.is_shutdown():
            raise RuntimeError("LLM is shutting down")
        if not isinstance(sampling_params, SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams or None, but got {type(sampling_params)}")
        if sampling_params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        prompt = inputs["prompt_token_ids"] if isinstance(inputs, dict) else inputs
        self._check(prompt, sampling_params)
        self._last_id += 1
        result = RequestOutput(self._last_id, prompt, sampling_params, self._abort_request)
        self._results[self._last_id] = result
        adapter = 0 if lora_request is None else lora_request.lora_int_id
        self._connection.send(("submit", (self._last_id, prompt, sampling_params_as_dict(sampling_params), adapter)))
        return result

    def _check(self, prompt: list[int], params: SamplingParams) -> None:
        if not self.args.enable_chunked_prefill and len(prompt) > (self.args.max_num_tokens or 0):
            raise (RequestError if version.CHECKS_HEALTH else ValueError)(
                f"The sum of prompt length ({len(prompt)}), query length (0) should not exceed max_num_tokens"
                f" ({self.args.max_num_tokens})"
            )
        if prompt[0] == self._wishes.get("refuse_token"):
            raise RequestError("the stand-in refused because it was asked to")
        if params.guided_decoding is not None and self.args.guided_decoding_backend is None:
            raise ValueError("guided decoding is not enabled")
        if (params.best_of if params.use_beam_search else 1) != (self.args.max_beam_width or 1):
            raise ValueError(
                f"Request beam width {params.best_of} is not equal to max_beam_width. This is not supported!"
            )

    def _abort_request(self, request_id: int) -> None:
        self._connection.send(("cancel", request_id))

    def _dispatch(self) -> None:
        while True:
            try:
                responses = self._connection.recv()
            except (EOFError, OSError):
                break
            for response in responses:
                self._put(
                    self._results.pop(response["id"]) if response["final"] else self._results[response["id"]], response
                )
        if not self._shutting_down and not self._wishes.get("silent_death"):
            self._shutting_down = True
            for result in list(self._results.values()):
                self._put(result, CppExecutorError("a worker process of the stand-in died"))

    def _put(self, result: RequestOutput, response: Any) -> None:
        result._loop.call_soon_threadsafe(result._queue.put_nowait, response)

    def is_shutdown(self) -> bool:
        """Of the executor, which is the same object here."""
        return self._shutting_down

    def shutdown(self) -> None:
        self._shutting_down = True
        self._executor = None
        if self._encoder_executor is not None:
            return
        self._connection.close()
        self._worker.terminate()
        self._worker.wait()

    if version.ENCODES:

        def encode(
            self,
            inputs: Any,
            add_special_tokens: bool = True,
            batch_indexed_model_output: bool = True,
            copy_logits_to_host: bool = True,
            return_raw_logits: bool = False,
            **model_kwargs: Any,
        ) -> EncoderOutput | list[EncoderOutput] | Any:
            """Take token ids alone: the engines tokenize."""
            if self._encoder_executor is None:
                raise RuntimeError("encode() needs encode_only=True in the LLM constructor")
            alone = isinstance(inputs[0], int)
            prompts = [inputs] if alone else inputs
            logits = self._encoder_executor.batch_forward(prompts, **model_kwargs)
            if return_raw_logits:
                return logits
            found = [EncoderOutput(row, prompt) for row, prompt in zip(logits, prompts, strict=True)]
            return found[0] if alone else found

    if version.CHECKS_HEALTH:

        def _check_health(self) -> bool:
            return not self._shutting_down and self._worker.poll() is None


def _log_prob(entry: Any) -> Any:
    """Of the C++ sampler a number, of the other one what the likeliest tokens have."""
    if not isinstance(entry, dict):
        return entry
    return {token: Logprob(log_prob, rank) for rank, (token, log_prob) in enumerate(entry.items(), 1)}


def sampling_params_as_dict(params: SamplingParams) -> dict[str, Any]:
    """What the worker needs of them: it has no tensorrt_llm on its path."""
    guide = params.guided_decoding
    return {
        "max_tokens": params.max_tokens,
        "end_ids": [] if params.ignore_eos else [params.end_id],
        "stop_ids": params.stop_token_ids or [],
        "min_tokens": params.min_tokens or 0,
        "bad_words": params._get_bad_words(),
        "bias": None if params.embedding_bias is None else list(params.embedding_bias),
        "seed": None if params._greedy_decoding or params.use_beam_search else params.seed or 0,
        "guide": None if guide is None else (guide.json or guide.regex or guide.grammar or "json_object"),
        "beams": params.best_of if params.use_beam_search else 1,
    }
