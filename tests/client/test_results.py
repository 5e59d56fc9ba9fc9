"""Results say what they know of tokens, and can be sent to other processes."""

from __future__ import annotations

import pickle

import pytest
from inflight_client import Delta, Generation, LogProb, Timings, Usage

COUNTED = Usage(3, 4)
LAST = Delta("tea", "stop", COUNTED, (1, 2), (LogProb(-0.5), LogProb(-0.25)))
WHOLE = Generation("tea", "stop", COUNTED, Timings(0.1, 0.2), "mine")


@pytest.mark.parametrize("result", [LAST, WHOLE])
def test_counts_are_the_usages(result: Delta | Generation) -> None:
    assert (result.input_tokens, result.output_tokens) == (3, 4)
    assert pickle.loads(pickle.dumps(result)) == result


def test_where_nobody_counted_there_are_no_counts() -> None:
    for result in (Delta("tea"), Generation("tea", "unknown", None, Timings(0.1, 0.2), "mine")):
        assert (result.input_tokens, result.output_tokens) == (None, None)


def test_a_delta_is_a_light_tuple() -> None:
    text, finish_reason, *_ = LAST
    assert (text, finish_reason) == ("tea", "stop")
    assert repr(LAST).startswith("Delta(text='tea'")
    assert not hasattr(LAST, "__dict__")
    assert isinstance(LAST._replace(text=""), Delta)
