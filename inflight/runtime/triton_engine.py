"""The `tensorrt_llm` model on the embedded engine: token ids in, token ids out, each request in flight on its own."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import RequestError, TokenEvent
from inflight.runtime.model_parameters import engine_options, flag, parameters
from inflight.runtime.process import EngineProcess
from inflight.runtime.receipts import ReceiptListener
from inflight.runtime.stream_watch import StreamWatch
from inflight.runtime.triton_answer import Answer, fail
from inflight.runtime.triton_request import generation_request
from inflight.runtime.triton_tensors import scalar


class TritonEngine:
    """Hands requests to the engine's process, and the engine's events to Triton as they come (decoupled)."""

    def __init__(self, args: dict[str, str]) -> None:
        settings = parameters(args)
        self._exclude_input = flag(settings, "exclude_input_in_output", default=False)
        self._engine = EngineProcess(
            engine_options(settings),
            restart="INFLIGHT_SUPERVISED" not in os.environ,
            report=pb_utils.Logger.log_error,
        )
        with open(f"{settings['gpt_model_path']}/engine.json", encoding="utf-8") as file:
            end_ids = json.load(file)["end_ids"]
        # Some checkpoints name end tokens that their model can't produce; the engine must not see these.
        self._end_ids = tuple(end_id for end_id in end_ids if end_id < self._engine.limits.vocabulary_size)
        self._postprocessing = settings["postprocessing_model_name"]
        self._watch = StreamWatch(self._engine.cancel, self._probe)
        self._receipts = ReceiptListener(args["model_name"], self._watch.received)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._submit(request, sender)
            except RequestError as error:
                fail(sender, str(error), error.code)

    def finalize(self) -> None:
        self._engine.close()
        self._watch.close()
        self._receipts.close()

    def _submit(self, request: Any, sender: Any) -> None:
        """Start a request.

        Where its stream key comes from preprocessing, postprocessing acknowledges its chunks, which shows when the
        client goes away. A request that came to this model directly has none, and Triton is asked.
        """
        generation = generation_request(request, self._end_ids)
        exclude_input = scalar(request, "exclude_input_in_output", self._exclude_input)
        streaming = scalar(request, "streaming", False)
        key = scalar(request, "stream_key", 0)
        answer = Answer(sender, generation, streaming, exclude_input)

        def on_event(event: TokenEvent) -> None:
            if event.finish_reason is not None:
                answer.push(event, 0)
                self._watch.end(key)
            elif key and streaming:
                answer.push(event, self._watch.next_chunk(key, event.handle))
                self._watch.sent(key)
            else:
                if not key and answer.client_has_gone():
                    self._watch.client_has_gone(event.handle)
                answer.push(event, event.handle)

        self._engine.submit(generation, on_event)

    def _probe(self, key: int) -> None:
        """Send postprocessing a chunk without tokens, whose receipt tells what came before it."""
        chunk = {
            "TOKENS_BATCH": np.zeros((1, 1, 0), np.int32),
            "SEQUENCE_LENGTH": np.zeros((1, 1), np.int32),
            "CONTEXT_IDS": np.zeros((1, 0), np.int32),
            "STREAM_KEY": np.array([[key]], np.uint64),
        }
        pb_utils.InferenceRequest(
            model_name=self._postprocessing,
            requested_output_names=["OUTPUT"],
            inputs=[pb_utils.Tensor(name, values) for name, values in chunk.items()],
        ).exec()
