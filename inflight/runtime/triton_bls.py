"""The `tensorrt_llm_bls` model: text in, text out, as the ensemble, but scripted."""

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

from inflight.runtime.bounded_strings import bound_strings
from inflight.runtime.chunk_messages import PARAMETER, AnswerEnd, ChunkReceiver, TokenChunk
from inflight.runtime.detokenizer import Detokenizer
from inflight.runtime.last_responses import only_response
from inflight.runtime.messages import RequestError
from inflight.runtime.model_parameters import decoupled, flag, milliseconds, parameters
from inflight.runtime.open_answers import OpenAnswers
from inflight.runtime.origin import origin_parameters
from inflight.runtime.places import Places
from inflight.runtime.server_watch import end_with_server
from inflight.runtime.spent_responses import SpentResponses
from inflight.runtime.tokenizer import load_tokenizer
from inflight.runtime.triton_answer import Reply
from inflight.runtime.triton_bls_answer import Tensors, TextAnswer, tokens_of
from inflight.runtime.triton_bls_call import Call, Responses, arrays, prepare, stream
from inflight.runtime.triton_bls_drafts import DraftedAnswer, check_drafts
from inflight.runtime.triton_bls_request import TEXT_INPUTS, text_request
from inflight.runtime.triton_inputs import Inputs, check_names, parameters_json
from inflight.runtime.triton_tensors import tensor

_THREADS = 256
_MOST_KEPT = 224
"""Requests that take a thread each to their end: those whose tokens don't come the short way, and those that are made
in rounds. The other threads are for what takes one for some milliseconds: other requests, refusals, and stopping."""
_MOST_CALLS = 24
"""Calls that wait for their first response. Triton keeps a thread for each, of 32, and needs some to send responses."""

Taker = Callable[[TokenChunk], None]


class TritonBls:
    """Calls preprocessing and the engine's model for each request, and makes text of the tokens as they come."""

    def __init__(self, args: dict[str, str]) -> None:
        end_with_server()
        bound_strings(pb_utils)
        # Texts are decoded one at a time: sharing them among threads would take longer than decoding them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        settings = parameters(args)
        self._model = args["model_name"]
        self._decoupled = decoupled(args)
        self._engine = settings["tensorrt_llm_model_name"]
        self._draft_engine = settings.get("tensorrt_llm_draft_model_name", "")
        self._preprocessing = settings["preprocessing_model_name"]
        self._extended = flag(settings, "inflight_tensors", default=True)
        self._engine_drafts = flag(settings, "engine_drafts", default=False)
        self._accumulate = flag(settings, "accumulate_tokens", default=False)
        self._exclude_input = flag(settings, "exclude_input_in_output", default=False)
        skip_special_tokens = flag(settings, "skip_special_tokens", default=True)
        self._detokenizer = Detokenizer(load_tokenizer(settings["tokenizer_dir"]), skip_special_tokens)
        self._spent = SpentResponses()
        self._takers: dict[int, Taker] = {}
        self._calls: dict[int, Call] = {}
        check_seconds = milliseconds(settings, "cancellation_check_period_ms") / 1000
        self._open = OpenAnswers(self._stop, check_seconds, pb_utils.Logger.log_error)
        self._chunks = ChunkReceiver(self._take, pb_utils.Logger.log_error)
        self._short_way = {PARAMETER: self._chunks.address} if self._extended and self._decoupled else {}
        self._threads = ThreadPoolExecutor(_THREADS, "calls")
        self._kept = Places(_MOST_KEPT)
        self._places = threading.BoundedSemaphore(_MOST_CALLS)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._threads.submit(self._serve, request, request.get_response_sender())

    def finalize(self) -> None:
        self._open.close()
        self._chunks.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._spent.close()

    def _serve(self, request: Any, sender: Any) -> None:
        """All of a request, up to its end or to the engine's promise to send its tokens the short way."""
        reply = Reply(sender, 1, spent=self._spent)
        call = None
        try:
            given = json.loads(parameters_json(request))
            check_names(given, inputs=TEXT_INPUTS)
            inputs = Inputs(request)
            if inputs.common("stop", default=False):
                self._stop_requests(request.request_id())
                reply.send([], last=True)
                return
            read = text_request(inputs, self._exclude_input)
            drafts = read.num_draft_tokens > 0 and not self._engine_drafts
            if drafts:
                check_drafts(read, self._draft_engine)
            with nullcontext() if self._short_way and not drafts else self._kept:
                with self._places:
                    prepared = prepare(self._preprocessing, read)
                reply = Reply(sender, read.prompts * read.sequences, spent=self._spent)
                beside = {**self._short_way, **(origin_parameters(given) if self._extended else {})}
                call = Call(request.request_id(), read, prepared, reply, not self._extended, beside)
                call.make_answers(self._detokenizer, self._accumulate, search=drafts or not self._extended)
                self._remember(call)
                if drafts:
                    self._generate_with_drafts(call)
                else:
                    self._generate(call)
        except Exception as error:
            self._fail(call, reply, error)

    def _remember(self, call: Call) -> None:
        for answer in call.answers:
            self._calls[answer.key] = call
            self._takers[answer.key] = partial(self._take_of, call, answer)
            self._open.add(call.id, answer)

    def _forget(self, call: Call, answer: TextAnswer) -> None:
        self._calls.pop(answer.key, None)
        self._takers.pop(answer.key, None)
        self._open.remove(call.id, answer)

    def _fail(self, call: Call | None, reply: Reply, error: Exception) -> None:
        """End all answers to a request."""
        if not isinstance(error, RequestError):
            what = f"{type(error).__name__}: {error}"
            pb_utils.Logger.log_error(f"a request to {self._model} failed: {what}")
            error = RequestError(f"the request failed ({what}); the server's log may say more", "invalid_request")
            if call is not None:  # the engine knows nothing of it
                self._threads.submit(self._abandon, call)
        try:
            reply.fail(str(error), error.code)
        finally:
            if call is not None:
                call.responses.cancel()  # who takes its tokens must not wait for what never comes
                for answer in call.answers:
                    self._forget(call, answer)

    def _generate(self, call: Call) -> None:
        request = call.request
        # To end the engine's work at a stop word, its tokens must come as they are made. Beams are told at their end:
        # an engine that is not ours would send what it may yet change.
        streaming = request.streaming and (self._extended or request.beams == 1)
        streaming |= call.searches and self._decoupled and request.beams == 1
        inputs = request.engine_inputs(call.prepared, streaming, self._extended)
        first, others = self._call(self._engine, call, inputs, request.engine_outputs(self._extended))
        if first is None:
            if call.responses.set_running_or_notify_cancel():  # not where it has failed meanwhile
                call.responses.set_result(map(arrays, others))
            call.may_be_stopped()
            return
        while first is not None:
            if tensors := arrays(first):
                self._respond(call, tensors, streaming)
            first = next(others, None)
        for answer in call.answers:
            self._finish(call, answer, {})

    def _call(self, model: str, call: Call, inputs: list[Any], outputs: list[str]) -> tuple[Any, Responses]:
        """Ask the engine's model: its first response, None where it sends the tokens the short way, and the others."""
        with self._places:
            if not self._short_way:  # the first response may take long
                call.may_be_stopped()
            responses = stream(model, call.id, inputs, outputs, self._spent, call.parameters)
        first = next(responses, None)
        if first is None:
            raise RequestError(f"the model {model} gave no response; send the request again", "engine_restarting")
        if self._short_way and not first.has_error() and not first.output_tensors():
            return None, responses
        return first, responses

    def _respond(self, call: Call, tensors: Tensors, streaming: bool) -> None:
        """Take a response that came through Triton."""
        answer = call.answer_of(tensors)
        if not streaming or "finish_reason" in tensors:
            self._finish(call, answer, tensors)
            return
        answer.keep(tensors)
        if "output_ids" in tensors:
            token_ids, log_probs = tokens_of(tensors)
            self._push(answer, TokenChunk(answer.key, token_ids, log_probs))

    def _take(self, chunk: TokenChunk) -> None:
        """Take what came the short way."""
        taker = self._takers.get(chunk.key)
        if taker is not None:
            taker(chunk)

    def _take_of(self, call: Call, answer: TextAnswer, chunk: TokenChunk) -> None:
        try:
            chunk.check_follows(answer.position)
            answer.position = chunk.end
            if chunk.token_ids:
                self._push(answer, chunk)
            if chunk.ended:
                self._finish(call, answer, call.last_of(answer))
        except Exception as error:
            self._fail(call, call.reply, error)

    def _push(self, answer: TextAnswer, chunk: TokenChunk) -> None:
        gone, stopped = answer.client_gone, answer.stopped
        answer.push(chunk.token_ids, chunk.log_probs, chunk.timings)
        answer.client_gone = gone or answer.client_has_gone()
        if (answer.client_gone, answer.stopped) != (gone, stopped):
            self._threads.submit(self._stop, answer.key)

    def _finish(self, call: Call, answer: TextAnswer, tensors: Tensors) -> None:
        answer.finish(tensors)
        self._forget(call, answer)

    def _generate_with_drafts(self, call: Call) -> None:
        (answer,) = call.answers
        drafted = DraftedAnswer(call, self._ask, self._engine, self._draft_engine, self._extended)
        self._finish(call, answer, drafted.generate())

    def _ask(self, model: str, call: Call, inputs: list[Any], outputs: list[str]) -> Tensors:
        """Ask a model for one answer, and wait for its one response."""
        end = AnswerEnd()
        (answer,) = call.answers
        self._takers[answer.key] = end.take
        first, others = self._call(model, call, inputs, outputs)
        if first is not None:
            return only_response(map(arrays, chain([first], others)))
        call.may_be_stopped()
        end.wait()
        return only_response(map(arrays, others))

    def _stop(self, key: int) -> None:
        """Have the engine end an answer; one that has ended already is no error."""
        call = self._calls.get(key)
        if call is None:
            return
        # Other engines end all answers to a request at once.
        if self._extended or all(answer.closed or answer.stopped or answer.client_gone for answer in call.answers):
            self._send_stop(call, key)

    def _stop_requests(self, client_id: str) -> None:
        """End all answers to the requests of that id, with what they have said; an unknown id is no error."""
        if not client_id:
            raise RequestError(
                "Trying to stop a request but request ID is not provided; send the id of the request to stop",
                "invalid_request",
            )
        for call in {id(call): call for call in list(self._calls.values()) if call.client_id == client_id}.values():
            call.asked_to_end = True
            for answer in call.answers:
                answer.asked_to_end = True
            self._abandon(call)

    def _abandon(self, call: Call) -> None:
        for answer in call.answers[: None if self._extended else 1]:
            self._send_stop(call, answer.key)

    def _send_stop(self, call: Call, key: int) -> None:
        inputs = [
            tensor("input_ids", [[0]], np.int32),
            tensor("input_lengths", [[1]], np.int32),
            tensor("request_output_len", [[1]], np.int32),
            tensor("stop", [[True]], np.bool_),
        ]
        if self._extended:
            inputs.append(tensor("stream_key", [[key]], np.uint64))
        for response in stream(self._engine, call.id, inputs, ["output_ids", "sequence_length"], self._spent):
            if response.has_error():
                pb_utils.Logger.log_warn(f"a request could not be stopped: {response.error().message()}")
