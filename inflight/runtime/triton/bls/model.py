"""The `tensorrt_llm_bls` model: text in, text out, like the ensemble, but scripted."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.engine.admission import AdmissionSlots
from inflight.runtime.messages import RequestError
from inflight.runtime.streams.chunk_channel import CHUNKS_PARAMETER, AnswerCompletion, ChunkReceiver, TokenChunk
from inflight.runtime.text.detokenizer import Detokenizer
from inflight.runtime.text.tokenizer import load_tokenizer
from inflight.runtime.triton.active_requests import ActiveRequests
from inflight.runtime.triton.bls.answer import Tensors, TextAnswer, tokens_of
from inflight.runtime.triton.bls.call import BlsCall, Responses, arrays, prepare, stream
from inflight.runtime.triton.bls.drafts import DraftedAnswer, check_drafts
from inflight.runtime.triton.bls.last_responses import only_response
from inflight.runtime.triton.bls.request import TEXT_INPUTS, text_request
from inflight.runtime.triton.bounded_strings import bound_strings
from inflight.runtime.triton.inputs import ADD_SPECIAL_TOKENS, Inputs, check_parameter_names, parameters_json
from inflight.runtime.triton.model_parameters import decoupled, flag, milliseconds, parameters
from inflight.runtime.triton.request_metadata import metadata_parameters
from inflight.runtime.triton.response import Responder
from inflight.runtime.triton.stub.guard_launcher import end_with_server
from inflight.runtime.triton.stub.retained_responses import RetainedResponses
from inflight.runtime.triton.tensors import tensor

_THREADS = 256
_MAX_LONG_REQUESTS = 224
"""Limit of requests that occupy a thread to their end: those without the chunk channel or generated in rounds.

The remaining threads serve short tasks: other requests, refusals and stop requests.
"""
_MAX_PENDING_CALLS = 24
"""Limit of calls that wait for their first response.

Each occupies one of Triton's 32 threads, and some must remain to send responses.
"""

ChunkHandler = Callable[[TokenChunk], None]


class BlsModel:
    """Calls preprocessing and the engine's model for each request, and converts tokens to text as they come."""

    def __init__(self, args: dict[str, str]) -> None:
        end_with_server()
        bound_strings(pb_utils)
        # Texts are decoded one at a time, and sharing them among threads would take longer.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        settings = parameters(args)
        self._model = args["model_name"]
        self._decoupled = decoupled(args)
        self._engine = settings["tensorrt_llm_model_name"]
        self._draft_engine = settings.get("tensorrt_llm_draft_model_name", "")
        self._preprocessing = settings["preprocessing_model_name"]
        self._inflight_tensors = flag(settings, "inflight_tensors", default=True)
        self._engine_speculates = flag(settings, "engine_speculates", default=False)
        self._accumulate = flag(settings, "accumulate_tokens", default=False)
        self._exclude_input = flag(settings, "exclude_input_in_output", default=False)
        skip_special_tokens = flag(settings, "skip_special_tokens", default=True)
        self._detokenizer = Detokenizer(load_tokenizer(settings["tokenizer_dir"]), skip_special_tokens)
        # Other engines' responses are tokens, or answers: calls can't wait for them.
        self._retained = RetainedResponses(prompt=self._inflight_tensors)
        self._handlers: dict[int, ChunkHandler] = {}
        self._calls: dict[int, BlsCall] = {}
        check_seconds = milliseconds(settings, "cancellation_check_period_ms") / 1000
        self._active_requests = ActiveRequests(self._stop, check_seconds, pb_utils.Logger.log_error)
        self._chunk_receiver = ChunkReceiver(self._on_chunk, pb_utils.Logger.log_error)
        self._chunk_parameters = (
            {CHUNKS_PARAMETER: self._chunk_receiver.address} if self._inflight_tensors and self._decoupled else {}
        )
        self._threads = ThreadPoolExecutor(_THREADS, "calls")
        self._long_slots = AdmissionSlots(_MAX_LONG_REQUESTS)
        self._call_slots = threading.BoundedSemaphore(_MAX_PENDING_CALLS)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._threads.submit(self._serve, request, request.get_response_sender())

    def finalize(self) -> None:
        self._active_requests.close()
        self._chunk_receiver.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._retained.close()

    def _serve(self, request: Any, sender: Any) -> None:
        """Serve a request to its end, or until the engine accepts the chunk subscription."""
        reply = Responder(sender, 1, retained=self._retained)
        call = None
        try:
            given = json.loads(parameters_json(request))
            check_parameter_names(given, inputs=TEXT_INPUTS)
            inputs = Inputs(request)
            if inputs.common("stop", default=False):
                self._stop_requests(request.request_id())
                reply.send([], last=True)
                return
            read = text_request(inputs, self._exclude_input)
            drafts = read.num_draft_tokens > 0 and not self._engine_speculates
            if drafts:
                check_drafts(read, self._draft_engine)
            with nullcontext() if self._chunk_parameters and not drafts else self._long_slots:
                with self._call_slots:
                    special = {name: given[name] for name in (ADD_SPECIAL_TOKENS,) if name in given}
                    prepared = prepare(self._preprocessing, read, special)
                reply = Responder(sender, read.prompts * read.sequences, retained=self._retained)
                beside = {**self._chunk_parameters, **(metadata_parameters(given) if self._inflight_tensors else {})}
                call = BlsCall(request.request_id(), read, prepared, reply, not self._inflight_tensors, beside)
                call.create_answers(self._detokenizer, self._accumulate, search=drafts or not self._inflight_tensors)
                self._register(call)
                if drafts:
                    self._generate_with_drafts(call)
                else:
                    self._generate(call)
        except Exception as error:
            self._fail(call, reply, error)

    def _register(self, call: BlsCall) -> None:
        for answer in call.answers:
            self._calls[answer.key] = call
            self._handlers[answer.key] = partial(self._on_answer_chunk, call, answer)
            self._active_requests.add(call.id, answer)

    def _unregister(self, call: BlsCall, answer: TextAnswer) -> None:
        self._calls.pop(answer.key, None)
        self._handlers.pop(answer.key, None)
        self._active_requests.remove(call.id, answer)

    def _fail(self, call: BlsCall | None, reply: Responder, error: Exception) -> None:
        """End all answers to a request with an error."""
        if not isinstance(error, RequestError):
            what = f"{type(error).__name__}: {error}"
            pb_utils.Logger.log_error(f"a request to {self._model} failed: {what}")
            error = RequestError(f"the request failed ({what}); the server's log may say more", "invalid_request")
            if call is not None:  # the engine never got it
                self._threads.submit(self._stop_call, call)
        try:
            reply.fail(str(error), error.code)
        finally:
            if call is not None:
                call.responses.cancel()  # unblocks the thread that waits for its tokens
                for answer in call.answers:
                    self._unregister(call, answer)

    def _generate(self, call: BlsCall) -> None:
        request = call.request
        # Stopping the engine at a stop word needs streamed tokens. Beams come at the end: a third-party engine would
        # stream beams that may still change.
        streaming = request.streaming and (self._inflight_tensors or request.beams == 1)
        streaming |= call.finds_stop_words and self._decoupled and request.beams == 1
        inputs = request.engine_inputs(call.prepared, streaming, self._inflight_tensors)
        first, others = self._call(self._engine, call, inputs, request.engine_outputs(self._inflight_tensors))
        if first is None:
            if call.responses.set_running_or_notify_cancel():  # not if it has failed meanwhile
                call.responses.set_result(map(arrays, others))
            call.mark_stoppable()
            return
        while first is not None:
            if tensors := arrays(first):
                self._respond(call, tensors, streaming)
            first = next(others, None)
        for answer in call.answers:
            self._finish(call, answer, {})

    def _call(self, model: str, call: BlsCall, inputs: list[Any], outputs: list[str]) -> tuple[Any, Responses]:
        """Call the engine's model; return its first response (None with a chunk subscription) and the others."""
        with self._call_slots:
            if not self._chunk_parameters:  # the first response may take long
                call.mark_stoppable()
            responses = stream(model, call.id, inputs, outputs, self._retained, call.parameters)
        first = next(responses, None)
        if first is None:
            raise RequestError(f"the model {model} gave no response; send the request again", "engine_restarting")
        if self._chunk_parameters and not first.has_error() and not first.output_tensors():
            return None, responses
        return first, responses

    def _respond(self, call: BlsCall, tensors: Tensors, streaming: bool) -> None:
        """Process a response that came through Triton."""
        answer = call.answer_for(tensors)
        if not streaming or "finish_reason" in tensors:
            self._finish(call, answer, tensors)
            return
        answer.keep_extras(tensors)
        if "output_ids" in tensors:
            token_ids, log_probs = tokens_of(tensors)
            self._push(answer, TokenChunk(answer.key, token_ids, log_probs))

    def _on_chunk(self, chunk: TokenChunk) -> None:
        """Process a chunk of the chunk channel."""
        taker = self._handlers.get(chunk.key)
        if taker is not None:
            taker(chunk)

    def _on_answer_chunk(self, call: BlsCall, answer: TextAnswer, chunk: TokenChunk) -> None:
        try:
            chunk.check_position(answer.position)
            answer.position = chunk.end
            if chunk.token_ids:
                self._push(answer, chunk)
            if chunk.ended:
                self._finish(call, answer, call.last_response(answer))
        except Exception as error:
            self._fail(call, call.responder, error)

    def _push(self, answer: TextAnswer, chunk: TokenChunk) -> None:
        gone, stopped = answer.disconnected, answer.stopped
        answer.push(chunk.token_ids, chunk.log_probs, chunk.timings)
        answer.disconnected = gone or answer.is_disconnected()
        if (answer.disconnected, answer.stopped) != (gone, stopped):
            self._threads.submit(self._stop, answer.key)

    def _finish(self, call: BlsCall, answer: TextAnswer, tensors: Tensors) -> None:
        answer.finish(tensors)
        self._unregister(call, answer)

    def _generate_with_drafts(self, call: BlsCall) -> None:
        (answer,) = call.answers
        drafted = DraftedAnswer(call, self._infer, self._engine, self._draft_engine, self._inflight_tensors)
        self._finish(call, answer, drafted.generate())

    def _infer(self, model: str, call: BlsCall, inputs: list[Any], outputs: list[str]) -> Tensors:
        """Call a model for one answer and wait for its one response."""
        end = AnswerCompletion()
        (answer,) = call.answers
        self._handlers[answer.key] = end.feed
        first, others = self._call(model, call, inputs, outputs)
        if first is not None:
            return only_response(map(arrays, chain([first], others)))
        call.mark_stoppable()
        end.wait()
        return only_response(map(arrays, others))

    def _stop(self, key: int) -> None:
        """Stop an answer in the engine; ended answers are ignored."""
        call = self._calls.get(key)
        if call is None:
            return
        # Other engines stop all answers to a request at once.
        if self._inflight_tensors or all(
            answer.closed or answer.stopped or answer.disconnected for answer in call.answers
        ):
            self._send_stop(call, key)

    def _stop_requests(self, client_id: str) -> None:
        """End all answers to the requests of that id with the text so far; an unknown id is ignored."""
        if not client_id:
            raise RequestError(
                "Trying to stop a request but request ID is not provided; send the id of the request to stop",
                "invalid_request",
            )
        for call in {id(call): call for call in list(self._calls.values()) if call.client_id == client_id}.values():
            call.stop_requested = True
            for answer in call.answers:
                answer.stop_requested = True
            self._stop_call(call)

    def _stop_call(self, call: BlsCall) -> None:
        for answer in call.answers[: None if self._inflight_tensors else 1]:
            self._send_stop(call, answer.key)

    def _send_stop(self, call: BlsCall, key: int) -> None:
        inputs = [
            tensor("input_ids", [[0]], np.int32),
            tensor("input_lengths", [[1]], np.int32),
            tensor("request_output_len", [[1]], np.int32),
            tensor("stop", [[True]], np.bool_),
        ]
        if self._inflight_tensors:
            inputs.append(tensor("stream_key", [[key]], np.uint64))
        for response in stream(self._engine, call.id, inputs, ["output_ids", "sequence_length"], self._retained):
            if response.has_error():
                pb_utils.Logger.log_warn(f"a request could not be stopped: {response.error().message()}")
