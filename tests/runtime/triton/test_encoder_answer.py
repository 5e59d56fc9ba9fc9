"""An encoder's request is answered once, whatever happens to its response. Triton's module is a stand-in."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inflight.common.request_error import RequestError

_MODULES = ("inflight.runtime.triton.encoders.answer", "inflight.runtime.triton.tensors")


class Sender:
    """Keeps the responses, or refuses those with tensors."""

    def __init__(self, refuses: bool = False) -> None:
        self._refuses = refuses
        self.sent: list[Any] = []

    def send(self, response: Any, flags: int) -> None:
        if self._refuses and response.output_tensors:
            raise RuntimeError("shared memory is full")
        self.sent.append(response)

    def is_cancelled(self) -> bool:
        return False


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of answers, on a stand-in of Triton's."""

    def response(output_tensors: Any, error: Any = None) -> Any:
        return SimpleNamespace(output_tensors=output_tensors, error=error)

    standin: Any = SimpleNamespace(
        InferenceResponse=response,
        Tensor=lambda name, array: (name, array),
        TritonError=lambda message, status: message,
        Logger=SimpleNamespace(log_error=lambda line: None),
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    )
    standin.TritonError.INVALID_ARG = 3
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", standin)
        for name in _MODULES:
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module(_MODULES[0])
    for name in _MODULES:
        sys.modules.pop(name, None)


def outputs(rows: Any) -> dict[str, Any]:
    return {"embedding": rows}


def failing_outputs(rows: Any) -> dict[str, Any]:
    raise ValueError("no such activation")


def answer(
    answers: Any, sender: Sender, make: Callable[[Any], dict[str, Any]] = outputs, deadline_ns: int | None = None
) -> tuple[Any, list[str]]:
    """An answer of two texts with two dimensions, and the statuses with which texts ended."""
    ended: list[str] = []
    form = answers.AnswerFormat("embedding", make, {"embedding", "error"}, True)
    return answers.EncoderAnswer(sender, np.full((2, 2), np.nan, np.float32), form, ended.append, deadline_ns), ended


@pytest.mark.parametrize(
    ("make", "refuses", "dimensions"),
    [(failing_outputs, False, 2), (outputs, True, 2), (outputs, False, 3)],
    ids=["its outputs cannot be made", "it cannot be sent", "a row has another size"],
)
def test_a_response_that_cannot_be_made_or_sent_is_an_error(
    answers: Any, make: Callable[[Any], dict[str, Any]], refuses: bool, dimensions: int
) -> None:
    sender = Sender(refuses)
    found, ended = answer(answers, sender, make)
    for index in range(2):
        found.deliver(index, np.ones(dimensions), None)
    assert found.ended
    assert [response.error is not None for response in sender.sent] == [True]
    assert len(ended) == 2


def test_a_request_is_answered_once(answers: Any) -> None:
    sender = Sender()
    found, ended = answer(answers, sender)
    found.deliver(1, None, RequestError("it failed", "text_not_computed"))
    assert not sender.sent
    found.deliver(0, np.ones(2), None)
    found.fail(RequestError("too late", "cancelled"))
    (response,) = sender.sent
    tensors = dict(response.output_tensors)
    assert response.error is None
    assert tensors["error"].ravel().tolist() == [b"", b"it failed [text_not_computed]"]
    assert np.isnan(tensors["embedding"][1]).all()
    assert ended == ["error", "ok"]


@pytest.mark.parametrize(("seconds", "late"), [(None, False), (60, False), (0, True)])
def test_a_request_ends_at_its_deadline(answers: Any, seconds: int | None, late: bool) -> None:
    sender = Sender()
    deadline = None if seconds is None else time.monotonic_ns() + seconds * 10**9
    found, ended = answer(answers, sender, deadline_ns=deadline)
    found.deliver(0, np.ones(2), None)
    assert found.end_if_cancelled() == found.ended == late
    assert [response.error.endswith("[deadline_exceeded]") for response in sender.sent] == [True] * late
    assert ended == ["ok", *["cancelled"] * late]
