"""The answer to a request of an encoder's model: collects the results of its texts, and sends one response."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.common.request_error import RequestError
from inflight.runtime.triton.encoders.tasks import Outputs
from inflight.runtime.triton.tensors import as_request_error, error_response


@dataclass(frozen=True)
class AnswerFormat:
    """What the response has: the task's own `outputs`, those that were asked for, and the shape of the others.

    `column` says that the outputs with one value per text are [texts, 1], not [texts]. `model` is named in the log.
    """

    model: str
    outputs: Outputs
    requested: Collection[str]
    column: bool


class EncoderAnswer:
    """Thread-safe. Ends once all texts have a result, or with the first error if the output `error` was not requested.
    A response that cannot be made or sent is replaced with an error.

    `rows` has a place for the result of each text. `ended` gets the status of each text: "ok", "error" or "cancelled",
    also for a deadline (on the monotonic clock).
    """

    def __init__(
        self,
        sender: Any,
        rows: Any,
        form: AnswerFormat,
        ended: Callable[[str], None],
        deadline_ns: int | None = None,
    ) -> None:
        self._sender = sender
        self._format = form
        self._ended = ended
        self._deadline_ns = deadline_ns
        self._lock = threading.Lock()
        self._open = texts = len(rows)
        self._rows = rows
        self._tokens = np.zeros(texts, dtype=np.int32)
        self._truncated = np.zeros(texts, dtype=np.bool_)
        self._errors = [b""] * texts

    @property
    def ended(self) -> bool:
        return self._open <= 0

    def describe(self, index: int, tokens: int, truncated: bool) -> None:
        """Note the number of tokens that are computed for a text, and whether it was cut."""
        self._tokens[index] = tokens
        self._truncated[index] = truncated

    def deliver(self, index: int, row: Any, error: RequestError | None) -> None:
        """Take the result of a text, or its error."""
        with self._lock:
            if self.ended:
                return
            try:
                self._take(index, row, error)
            except Exception as failure:
                self._fail(as_request_error(failure, self._format.model), "error")

    def fail(self, error: RequestError) -> None:
        """End the whole request with an error, if it has not ended."""
        with self._lock:
            if not self.ended:
                self._fail(error, "error")

    def end_if_cancelled(self) -> bool:
        """End the request if its client has left or its deadline has passed; return whether it has ended.

        Triton must not be asked after the final response, which frees the request.
        """
        with self._lock:
            if self.ended:
                return True
            if self._deadline_ns is not None and time.monotonic_ns() >= self._deadline_ns:
                late = "the texts were not computed by the request's deadline; allow more time, or send fewer texts"
                self._fail(RequestError(late, "deadline_exceeded"), "cancelled")
            elif self._sender.is_cancelled():
                self._fail(RequestError("the request was cancelled", "cancelled"), "cancelled")
            return self.ended

    def _take(self, index: int, row: Any, error: RequestError | None) -> None:
        if error is None:
            self._rows[index] = row
        elif "error" in self._format.requested:
            self._errors[index] = f"{error} [{error.code}]".encode()
        else:
            where = f"text {index}: " if len(self._rows) > 1 else ""
            self._fail(RequestError(f"{where}{error}", error.code), "error")
            return
        self._ended("ok" if error is None else "error")
        self._open -= 1
        if not self._open:
            self._send(pb_utils.InferenceResponse(self._tensors()))

    def _fail(self, error: RequestError, status: str) -> None:
        for _ in range(self._open):
            self._ended(status)
        self._open = 0
        self._send(error_response(error))

    def _send(self, response: Any) -> None:
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _tensors(self) -> list[Any]:
        single = {
            "num_input_tokens": self._tokens,
            "truncated": self._truncated,
            "error": np.array(self._errors, dtype=np.object_),
        }
        if self._format.column:
            single = {name: array[:, None] for name, array in single.items()}
        arrays = {**self._format.outputs(self._rows), **single}
        return [pb_utils.Tensor(name, array) for name, array in arrays.items() if name in self._format.requested]
