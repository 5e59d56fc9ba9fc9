"""A stand-in for TensorRT-LLM's C++ backend in tests, as a backend that Triton runs in Python; it computes no model.

An answer is its prompt's tokens over and over, one a step of STANDIN_STEP_SECONDS, for all requests at once.
What it knows of upstream's backend it does in its words (triton_backend/inflight_batcher_llm/src at c8c6df08 of
NVIDIA/TensorRT-LLM): which parameters it reads and which of them it refuses, its tensors, counts, queue, `stop` and
cancelling. It does not compute: speculation, guides, LoRA, penalties and sampling are taken and change nothing, and
what goes with what is looked at for a few parameters alone (see parameters.py). It is stricter in one thing: upstream
warns of a parameter that it can't parse and goes on with its default, and ignores those that it does not know; here
both fail.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

# Triton runs this file where it was laid out for it; what belongs to it is found through a link there.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from inflight.runtime.triton.stub.guard_launcher import end_with_server
from tests.standins.mpi.ranks import join
from tests.standins.tensorrtllm.answer import SequenceAnswer
from tests.standins.tensorrtllm.parameters import read_parameters
from tests.standins.tensorrtllm.plan import check_engine

NOT_DECOUPLED = "Batch size > 1 requires the tensorrt_llm backend to be using decoupled transaction policy"
NO_STREAMS = "Streaming is only supported if model is deployed using decoupled mode."


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        end_with_server()  # as the C++ backend, which is part of the server
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        texts = {name: value["string_value"] for name, value in config["parameters"].items()}
        self.parameters = read_parameters(texts)
        self.max_queue_size = config["dynamic_batching"]["default_queue_policy"]["max_queue_size"]
        check_engine(self.parameters["gpt_model_path"])
        join(self.parameters["gpt_model_path"], self.parameters["executor_worker_path"])
        self.step_seconds = float(os.environ.get("STANDIN_STEP_SECONDS", "0.002"))
        self.lock = threading.Lock()
        self.running: list[SequenceAnswer] = []
        self.by_id: dict[str, list[SequenceAnswer]] = {}
        self.checked = time.monotonic()
        self.closing = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if not self.decoupled:
            return [self.whole(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            try:
                self.enqueue(request, sender)
            except Exception as error:
                sender.send(failed(str(error)), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def finalize(self) -> None:
        self.closing = True
        self.thread.join()

    def whole(self, request: Any) -> Any:
        """Without decoupling a request waits for its one response, and so do those behind it."""
        collected = Collected()
        try:
            self.enqueue(request, collected)
        except Exception as error:
            return failed(str(error))
        collected.ended.wait()
        return collected.responses[-1]

    def enqueue(self, request: Any, sender: Any) -> None:
        inputs = {each.name(): each.as_numpy() for each in request.inputs()}
        if "stop" in inputs and inputs["stop"].all():
            self.stop(request.request_id())
            sender.send(pb_utils.InferenceResponse([]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        rows = len(inputs["input_lengths"])
        if rows > 1 and not self.decoupled:
            raise ValueError(NOT_DECOUPLED)
        if "streaming" in inputs and inputs["streaming"].any() and not self.decoupled:
            raise ValueError(NO_STREAMS)
        wanted = set(request.requested_output_names())
        with self.lock:
            # Upstream counts what waits; here nothing does, so what runs is counted.
            if self.max_queue_size and len(self.running) >= self.max_queue_size:
                raise ValueError(
                    f"Maximum queue size of {self.max_queue_size} has been reached, please try again later"
                )
            pending: list[SequenceAnswer] = []
            for row in range(rows):
                one = {name: array[row] for name, array in inputs.items()}
                for sequence in range(one["num_return_sequences"].item() if "num_return_sequences" in one else 1):
                    pending.append(
                        SequenceAnswer(one, row, rows, sequence, wanted, self.parameters, request.request_id())
                    )
            for answer in pending:
                answer.sender, answer.pending = sender, pending
            self.running += pending
            if request.request_id():
                # Upstream knows only the latest request of an id, from any client.
                self.by_id[request.request_id()] = list(pending)

    def stop(self, request_id: str) -> None:
        if not request_id:
            raise ValueError("Trying to stop a request but request ID is not provided")
        with self.lock:
            for answer in self.by_id.get(request_id, []):
                answer.cancelled = True

    def forget(self, answer: SequenceAnswer) -> None:
        of_its_id = self.by_id.get(answer.request_id, [])
        if answer in of_its_id:
            of_its_id.remove(answer)
            if not of_its_id:
                del self.by_id[answer.request_id]

    def run(self) -> None:
        while not self.closing:
            time.sleep(self.step_seconds)
            with self.lock:
                running = list(self.running)
            self.look_for_cancelled(running)
            for answer in running:
                self.advance(answer)

    def look_for_cancelled(self, running: list[SequenceAnswer]) -> None:
        if time.monotonic() < self.checked + self.parameters["cancellation_check_period_ms"] / 1000:
            return
        self.checked = time.monotonic()
        for answer in running:
            if answer.sender.is_cancelled():  # Meanwhile `stop` may have set it, so nothing sets it back.
                answer.cancelled = True

    def advance(self, answer: SequenceAnswer) -> None:
        answer.step()
        if not (answer.streaming or answer.ended):
            return
        if answer.ended:
            with self.lock:
                self.running.remove(answer)
                self.forget(answer)
            answer.pending.remove(answer)
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if not answer.pending else 0
        answer.sender.send(answer.response(), flags=final)


class Collected:
    """Takes the responses to a request that gets one."""

    def __init__(self) -> None:
        self.responses: list[Any] = []
        self.ended = threading.Event()

    def send(self, response: Any, flags: int = 0) -> None:
        self.responses.append(response)
        if flags:
            self.ended.set()

    def is_cancelled(self) -> bool:
        return False


def failed(sentence: str) -> Any:
    return pb_utils.InferenceResponse([], pb_utils.TritonError(sentence, pb_utils.TritonError.INTERNAL))
