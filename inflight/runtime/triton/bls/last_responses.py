"""Which answer a response of the engine's model belongs to: its indices say, never the order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inflight.runtime.messages import RequestError

Tensors = Mapping[str, Any]
"""The arrays of a response, by name."""

_MISMATCHED = "the engine's model sent a response that belongs to no open answer, or too few; send the request again"


def mismatched_response() -> RequestError:
    """What ends a request whose responses can't be told apart: no answer at all, rather than a wrong one."""
    return RequestError(_MISMATCHED, "answer_damaged")


class LastResponses:
    """Finds the last response of each of a request's answers, which are numbered by prompt, then by sequence.

    Not thread-safe.
    """

    def __init__(self, prompts: int, sequences: int) -> None:
        self._prompts = prompts
        self._sequences = sequences
        self._early: dict[int, Tensors] = {}
        """Those that were read before anybody asked for them."""
        self._read: set[int] = set()

    def answer_index(self, tensors: Tensors) -> int:
        """The answer that a response belongs to; RequestError where it is none of this request."""
        row = _index(tensors, "batch_index", self._prompts)
        return row * self._sequences + _index(tensors, "sequence_index", self._sequences)

    def take_last(self, number: int, responses: Iterator[Tensors]) -> Tensors:
        """The last response of an answer, which has been sent; RequestError where what comes can't be its own.

        `responses` are those of the request that have not been read, the same ones each time.
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
    """The one response that is left to read, but for an empty one; RequestError where there is none, or two."""
    found = [tensors for tensors in responses if tensors]
    if len(found) != 1:
        raise mismatched_response()
    return found[0]


def _index(tensors: Tensors, name: str, count: int) -> int:
    """Which of several a response says that it is for; of one it need not say."""
    if name not in tensors and count > 1:
        raise mismatched_response()
    index = int(tensors[name].item()) if name in tensors else 0
    if not 0 <= index < count:
        raise mismatched_response()
    return index
