"""Assigns responses of the engine's model to answers by their index tensors; the order of arrival is not defined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inflight.runtime.messages import RequestError

Tensors = Mapping[str, Any]
"""The arrays of a response, by name."""

_MISMATCHED = "the engine's model sent a response that belongs to no open answer, or too few; send the request again"


def mismatched_response() -> RequestError:
    """Return the error of a request whose responses can't be assigned: it ends without a possibly wrong answer."""
    return RequestError(_MISMATCHED, "answer_damaged")


class LastResponses:
    """Finds the last response of each of a request's answers, which are numbered by prompt, then by sequence.

    Not thread-safe.
    """

    def __init__(self, prompts: int, sequences: int) -> None:
        self._prompts = prompts
        self._sequences = sequences
        self._early: dict[int, Tensors] = {}
        """Responses that were read before `take_last` asked for them."""
        self._read: set[int] = set()

    def answer_index(self, tensors: Tensors) -> int:
        """Return the number of a response's answer. Raises RequestError if it belongs to none of this request."""
        row = _index(tensors, "batch_index", self._prompts)
        return row * self._sequences + _index(tensors, "sequence_index", self._sequences)

    def take_last(self, number: int, responses: Iterator[Tensors]) -> Tensors:
        """Return the last response of an answer, which has been sent. Raises RequestError if another one comes.

        `responses` is the same iterator over the request's unread responses each time.
        """
        while number not in self._early:
            tensors = next(responses, None)
            if tensors is None or "finish_reason" not in tensors:
                raise mismatched_response()
            found = self.answer_index(tensors)
            if found in self._read:
                raise mismatched_response()
            self._read.add(found)
            self._early[found] = tensors
        return self._early.pop(number)


def only_response(responses: Iterator[Tensors]) -> Tensors:
    """Return the only remaining response, ignoring an empty one. Raises RequestError for more or fewer than one."""
    found = [tensors for tensors in responses if tensors]
    if len(found) != 1:
        raise mismatched_response()
    return found[0]


def _index(tensors: Tensors, name: str, count: int) -> int:
    """Return the value of an index tensor, which is optional if there is only one answer."""
    if name not in tensors and count > 1:
        raise mismatched_response()
    index = int(tensors[name].item()) if name in tensors else 0
    if not 0 <= index < count:
        raise mismatched_response()
    return index
