"""A stand-in for an LLM in tests, as a Triton model of upstream's `ensemble` tensors whose every delay is known.

It computes nothing: each token of an answer has a moment, which is computed from the request's arrival, and goes out
then, whatever went out late before it. A prompt says what its answer is like, such as "ttft=0.4 itl=0.1": seconds to
the first token and from one to the next. What it does not say, the model's parameter `delays` says. "stall=1" stops
the whole model for a second from the arrival of that prompt on: nothing is taken in or sent, and all moments after it
are as much later.
"""

from __future__ import annotations

import heapq
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

TOKEN = "tea "


class TimedModelAnswer:
    """One request's answer, and the moments (of the machine's monotonic clock) at which its parts went out."""

    def __init__(self, request: Any, arrived: float, delays: str) -> None:
        inputs = {each.name(): each.as_numpy() for each in request.inputs()}
        self.prompt = inputs["text_input"].flat[0].decode()
        words = self.prompt.split()
        said = dict(word.split("=", 1) for word in (*delays.split(), *words) if "=" in word)
        self.ttft, self.itl, self.stall = (float(said.get(name, 0)) for name in ("ttft", "itl", "stall"))
        self.tokens = inputs["max_tokens"].item()
        self.streams = "stream" in inputs and inputs["stream"].item()
        self.counts = {"num_input_tokens": len(words), "num_output_tokens": 1 if self.streams else self.tokens}
        self.wanted = [name for name in self.counts if f"return_{name}" in inputs and inputs[f"return_{name}"].item()]
        self.batched = inputs["text_input"].ndim - 1
        self.sender = request.get_response_sender()
        self.arrived = arrived
        self.sent: list[float] = []

    def due(self, base: float, token: int) -> float:
        return base + self.ttft + token * self.itl

    def response(self, token: int) -> tuple[Any, int]:
        """The response with that token, or with all of them, and its flags."""
        last = token == self.tokens - 1
        values = {"text_output": np.array([(TOKEN if self.streams else TOKEN * self.tokens).encode()], np.object_)}
        for name in self.wanted:
            values[name] = np.array([self.counts[name]], np.int32)
        tensors = [pb_utils.Tensor(name, value.reshape((1,) * self.batched + (1,))) for name, value in values.items()]
        return pb_utils.InferenceResponse(tensors), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0

    def line(self) -> str:
        return json.dumps({"prompt": self.prompt, "arrived": self.arrived, "sent": self.sent}) + "\n"


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.log = Path(parameters["log"]["string_value"])
        self.log.touch()
        self.delays = parameters["delays"]["string_value"]
        self.changed = threading.Condition()
        self.waiting: list[tuple[float, int, TimedModelAnswer, int]] = []
        """What is to be sent: when, a number that tells equal ones apart, of which answer, and which token."""
        self.number = 0
        self.stalled_until = 0.0
        self.closing = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            now = time.monotonic()
            answer = TimedModelAnswer(request, now, self.delays)
            with self.changed:
                if answer.stall:
                    self.stall(now, answer.stall)
                base = max(now, self.stalled_until)
                tokens = range(answer.tokens) if answer.streams else [answer.tokens - 1]
                for token in tokens:
                    self.put(answer.due(base, token), answer, token)
                self.changed.notify()

    def finalize(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join()

    def put(self, moment: float, answer: TimedModelAnswer, token: int) -> None:
        self.number += 1
        heapq.heappush(self.waiting, (moment, self.number, answer, token))

    def stall(self, now: float, seconds: float) -> None:
        self.stalled_until = max(now, self.stalled_until) + seconds
        later = [(moment + seconds, number, answer, token) for moment, number, answer, token in self.waiting]
        self.waiting[:] = later  # in the same order, so it is a heap still

    def run(self) -> None:
        while (due := self.next()) is not None:
            answer, token = due
            response, flags = answer.response(token)
            answer.sent.append(time.monotonic())
            answer.sender.send(response, flags=flags)
            if flags:
                with self.log.open("a") as log:
                    log.write(answer.line())

    def next(self) -> tuple[TimedModelAnswer, int] | None:
        """Wait for the next moment; None at the end."""
        with self.changed:
            while not self.closing:
                if not self.waiting:
                    self.changed.wait()
                    continue
                left = self.waiting[0][0] - time.monotonic()
                if left <= 0:
                    _, _, answer, token = heapq.heappop(self.waiting)
                    return answer, token
                self.changed.wait(left)
        return None
