"""The `tensorrt_llm` model on an engine of inflight: token ids in, token ids out, with in-flight batching."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.common.garbage_collection import freeze_loaded
from inflight.common.request_error import RequestError
from inflight.runtime.engine.supervisor import EngineProcess
from inflight.runtime.messages import GenerationRequest, RequestMetadata, TokenEvent
from inflight.runtime.metrics.engine_metrics import EngineMetrics
from inflight.runtime.streams.chunk_header import ChunkHeader, sequence_key
from inflight.runtime.streams.disconnect_detector import ChunkAckListener, DisconnectDetector
from inflight.runtime.triton.active_requests import ActiveRequests
from inflight.runtime.triton.adapters import Adapters
from inflight.runtime.triton.bounded_strings import bound_strings
from inflight.runtime.triton.inputs import Inputs, parameters_json
from inflight.runtime.triton.metrics import create_metrics_sink
from inflight.runtime.triton.model_parameters import decoupled, engine_options, flag, milliseconds, parameters
from inflight.runtime.triton.request import (
    ResponseOptions,
    check_limits,
    check_parameters,
    generation_requests,
    response_options,
    with_content_seed,
)
from inflight.runtime.triton.request_log import PATH_VARIABLE, RequestLine, RequestLog
from inflight.runtime.triton.request_metadata import ClientVersions, metadata_from
from inflight.runtime.triton.response import Responder, TokenAnswer
from inflight.runtime.triton.stub.guard_launcher import end_with_server
from inflight.runtime.triton.tensors import as_request_error, tensor


class EngineModel:
    """Submits requests to the engine's process, and sends the engine's events to Triton as they come."""

    def initialize(self, args: dict[str, str]) -> None:
        end_with_server()
        bound_strings(pb_utils)
        settings = parameters(args)
        self._model = args["model_name"]
        self._decoupled = decoupled(args)
        self._exclude_input = flag(settings, "exclude_input_in_output", default=False)
        options = engine_options(settings)
        self._adapters = Adapters(len(options.adapters), settings.get("lora_directory", ""))
        self._engine_name = options.engine
        self._engine = EngineProcess(
            options, restart="INFLIGHT_SUPERVISED" not in os.environ, report=pb_utils.Logger.log_error
        )
        with open(f"{settings['gpt_model_path']}/engine.json", encoding="utf-8") as file:
            end_ids = json.load(file)["end_ids"]
        # Some checkpoints name end tokens that their model can't produce; the engine must not get these.
        self._vocabulary_size = self._engine.limits.vocabulary_size
        self._end_ids = tuple(end_id for end_id in end_ids if end_id < self._vocabulary_size)
        self._special_token_ids = frozenset(self._end_ids if options.skip_special_tokens else ())
        self._reproducible = options.reproducible
        self._wrap_token_ids = flag(settings, "wrap_token_ids", default=False)
        self._metrics = EngineMetrics(
            self._engine,
            create_metrics_sink(args),
            options.stats_period_s,
            options.kv_cache_reuse,
            pb_utils.Logger.log_error,
        )
        self._postprocessing = settings["postprocessing_model_name"]
        check_seconds = milliseconds(settings, "cancellation_check_period_ms") / 1000
        self._active_requests = ActiveRequests(self._engine.cancel, check_seconds, pb_utils.Logger.log_error)
        self._disconnects = DisconnectDetector(self._engine.cancel, self._probe, pb_utils.Logger.log_error)
        self._chunk_acks = ChunkAckListener(args["model_name"], self._disconnects.on_ack, pb_utils.Logger.log_error)
        self._client_versions = ClientVersions(pb_utils.Logger.log_warn)
        log = os.environ.get(PATH_VARIABLE)
        self._log = RequestLog(log, pb_utils.Logger.log_error) if log else None
        freeze_loaded()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            origin = None
            try:
                inputs = Inputs(request)
                request_parameters = json.loads(parameters_json(request))
                check_parameters(request_parameters, inputs)
                origin = metadata_from(request_parameters)
                self._client_versions.check(origin)
                if inputs.common("stop", default=False):
                    self._stop_request(request.request_id(), inputs.scalar("stream_key", default=0), sender)
                    continue
                self._submit_request(request, inputs, origin, sender)
            except Exception as error:
                refused = as_request_error(error, self._model)
                self._record_rejection(request.request_id(), origin, refused)
                Responder(sender, 1).fail(str(refused), refused.code)

    def finalize(self) -> None:
        self._metrics.close()
        self._engine.close()
        if self._log is not None:
            self._log.close()
        self._active_requests.close()
        self._disconnects.close()
        self._chunk_acks.close()

    def _record_rejection(self, request_id: str, origin: RequestMetadata | None, refused: RequestError) -> None:
        """Record a request that was refused before the engine got it."""
        self._metrics.record_rejection()
        if self._log is not None:
            self._log.add(RequestLine(request_id, origin, "rejected", refused.code))

    def _submit_request(self, request: Any, inputs: Inputs, origin: RequestMetadata | None, sender: Any) -> None:
        """Submit a request's prompts to the engine."""
        request_id, outputs = request.request_id(), frozenset(request.requested_output_names())
        options = response_options(inputs, self._exclude_input)
        prompts = generation_requests(
            inputs, self._end_ids, self._adapters, self._engine_name, self._engine.limits, origin
        )
        if self._wrap_token_ids:
            prompts = [_with_wrapped_ids(prompt, self._vocabulary_size) for prompt in prompts]
        if self._reproducible:
            prompts = [with_content_seed(prompt) for prompt in prompts]
        check_limits(inputs, prompts, self._engine.limits)
        if not self._decoupled:
            _check_one_response(options, len(prompts))
        reply = Responder(sender, len(prompts) * options.sequences, outputs)
        answers: list[tuple[TokenAnswer, GenerationRequest]] = []
        for row, prompt in enumerate(prompts):
            for sequence in range(options.sequences):
                key = sequence_key(inputs.scalar("stream_key", row, 0), sequence)
                tags = [
                    tensor(name, [[index]], np.int32)
                    for name, index, several in (
                        ("batch_index", row, len(prompts) > 1),
                        ("sequence_index", sequence, options.sequences > 1),
                    )
                    if name in outputs and (several or not inputs.through_ensemble)
                ]
                answer = TokenAnswer(reply, prompt, options, tags, key, self._special_token_ids)
                answers.append((answer, _with_own_seed(prompt, sequence)))

        def submit(numbers: dict[int, Future[int]]) -> None:
            started: list[TokenAnswer] = []
            try:
                for answer, asked in answers:
                    loaded = replace(asked, adapter=numbers[asked.adapter].result()) if asked.adapter else asked
                    self._submit_answer(answer, request_id, loaded)
                    started.append(answer)
            except Exception as error:
                refused = as_request_error(error, self._model)
                self._record_rejection(request_id, origin, refused)
                reply.fail(str(refused), refused.code)
                for answer in started:
                    self._engine.cancel(answer.handle)

        numbers = {each: self._adapters.load(each, self._engine) for each in {prompt.adapter for prompt in prompts}}
        if all(each.done() for each in numbers.values()):
            submit(numbers)
        else:  # seconds, in which other requests go on
            threading.Thread(target=submit, args=(numbers,), daemon=True).start()

    def _stop_request(self, request_id: str, key: int, sender: Any) -> None:
        if not request_id:
            raise RequestError(
                "Trying to stop a request but request ID is not provided; send the id of the request to stop",
                "invalid_request",
            )
        self._active_requests.stop(request_id, key)
        sender.send(pb_utils.InferenceResponse([]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _submit_answer(self, answer: TokenAnswer, request_id: str, request: GenerationRequest) -> None:
        """Start an answer.

        If preprocessing set its stream key, postprocessing acknowledges its chunks, which shows when the client
        disconnects. A request sent to this model directly has no key, and Triton reports its disconnect.
        """

        meter = self._metrics.start_request(request)

        def on_event(event: TokenEvent) -> None:
            meter.observe(event)
            answer.handle = event.handle
            if event.finish_reason is not None:
                if self._log is not None:
                    self._log.add(_log_line(request_id, request, event, meter.output_tokens))
                self._active_requests.remove(request_id, answer)
                answer.finish(event)
                self._disconnects.end_stream(answer.key)
            elif answer.acknowledged:
                answer.push(event, self._disconnects.next_chunk_key(answer.key, event.handle), self._engine.undelivered)
                self._disconnects.mark_sent(answer.key)
            else:
                answer.push(event, 0, 0)

        self._active_requests.add(request_id, answer)
        try:
            answer.handle = self._engine.submit(request, on_event)
        except Exception:
            self._active_requests.remove(request_id, answer)
            raise

    def _probe(self, key: int) -> None:
        """Send postprocessing a chunk without tokens, whose acknowledgement shows which earlier chunks arrived."""
        pb_utils.InferenceRequest(
            model_name=self._postprocessing,
            requested_output_names=["OUTPUT"],
            inputs=[
                tensor("TOKENS_BATCH", np.zeros((1, 1, 0)), np.int32),
                tensor("SEQUENCE_LENGTH", [[0]], np.int32),
                pb_utils.Tensor("CHUNK_HEADER", ChunkHeader(key).to_tensor()),
            ],
        ).exec()


def _log_line(request_id: str, request: GenerationRequest, event: TokenEvent, output_tokens: int) -> RequestLine:
    """Return the log line of an answer with this last event; an event without metadata is due to the engine's death."""
    reason = event.finish_reason.value if event.finish_reason else ""
    code = event.error[1] if event.error else ""
    origin = event.metadata or request.metadata
    return RequestLine(request_id, origin, reason, code, len(request.prompt_ids), output_tokens, event.timings)


def _check_one_response(options: ResponseOptions, prompts: int) -> None:
    """Refuse a request for several responses if the model is not decoupled (in upstream's words)."""
    if options.streaming:
        raise RequestError(
            "Streaming is only supported if model is deployed using decoupled mode.; start the server without"
            " --no-decoupled",
            "invalid_request",
        )
    if prompts > 1:
        raise RequestError(
            "Batch size > 1 requires the tensorrt_llm backend to be using decoupled transaction policy; send one"
            " prompt a request",
            "invalid_request",
        )
    if options.sequences > 1:
        raise RequestError(
            f"num_return_sequences is {options.sequences}, which needs a decoupled deployment; start the server without"
            " --no-decoupled, or leave it out",
            "invalid_request",
        )


def _with_wrapped_ids(request: GenerationRequest, vocabulary_size: int) -> GenerationRequest:
    """Return prompt ids modulo the vocabulary's size: TensorRT-LLM accepts any id, and benchmarks send random ones."""
    return replace(request, prompt_ids=tuple(token_id % vocabulary_size for token_id in request.prompt_ids))


def _with_own_seed(request: GenerationRequest, sequence: int) -> GenerationRequest:
    """Give each answer but the first a seed derived from the request's, so that answers to the same prompt differ."""
    seed = request.sampling.seed
    if not sequence or seed is None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=(seed + sequence) % 2**64))
