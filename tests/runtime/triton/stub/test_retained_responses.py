"""What Triton may still hold is kept until it has answered a question that was asked later."""

from __future__ import annotations

import gc
import weakref

import pytest

from inflight.runtime.triton.stub.retained_responses import RetainedResponses


class StubResponses:
    """A stand-in for Triton's iterator, to be seen when it goes."""


def kept(spent: RetainedResponses) -> weakref.ref[StubResponses]:
    responses = StubResponses()
    spent.retain(responses)
    return weakref.ref(responses)


def test_they_go_with_the_answer_to_a_question_that_was_asked_later() -> None:
    spent, during = RetainedResponses(), []
    before = kept(spent)

    def ask() -> bool:
        assert before() is not None
        during.append(kept(spent))
        return False

    assert spent.release_after(ask) is False
    gc.collect()
    assert (before(), during[0]() is None) == (None, False)
    assert spent.release_after(lambda: False) is False
    assert during[0]() is None


def test_they_stay_where_the_answer_may_be_an_earlier_one() -> None:
    spent = RetainedResponses()
    before = kept(spent)
    assert spent.release_after(lambda: True) is True
    assert before() is not None
    with pytest.raises(ZeroDivisionError):
        spent.release_after(lambda: bool(1 // 0))
    assert before() is not None
    spent.release_after(lambda: False)
    assert before() is None


def test_none_outlives_the_memory_that_it_shares_with_triton() -> None:
    spent = RetainedResponses()
    before = kept(spent)
    spent.close()
    assert before() is None
    assert kept(spent)() is None
