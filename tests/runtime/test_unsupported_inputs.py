"""What the embedded engine can't honour is refused by name, and only where it is really used."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.runtime.messages import RequestError
from inflight.runtime.unsupported_inputs import UNSUPPORTED_INPUTS, check_supported

NOT_ZERO = {
    "decoder_input_ids": np.array([[50256], [50256]], np.int32),
    "bad_words_list": np.array([[[0], [-1]]], np.int32),
}
"""Where zeros are not what asks for nothing: the only token of a decoder, and no words."""
DEFAULTS = {
    "runtime_top_p_decay": np.ones((1, 1), np.float32),
    "retention_decode_priority": np.array([[35]], np.int32),
}
"""Upstream's own, of those that are not zero."""


@pytest.mark.parametrize("name", UNSUPPORTED_INPUTS)
def test_a_neutral_value_asks_for_nothing(name: str) -> None:
    check_supported(name, np.zeros((1, 0), np.float32), name)
    check_supported(name, NOT_ZERO.get(name, np.zeros((1, 3), np.float32)), name)


@pytest.mark.parametrize("name", DEFAULTS)
def test_upstreams_default_asks_for_nothing(name: str) -> None:
    check_supported(name, DEFAULTS[name], name)


@pytest.mark.parametrize("name", UNSUPPORTED_INPUTS)
def test_an_input_that_is_used_is_refused_by_its_name_with_the_reason(name: str) -> None:
    sentence = f"^{name} is not supported by the embedded engine: .+; leave it out$"
    with pytest.raises(RequestError, match=sentence) as raised:
        check_supported(name, np.full((1, 2), 3, np.int32), name)
    assert raised.value.code == "unsupported_input"


def test_any_other_input_passes() -> None:
    check_supported("input_ids", np.ones((1, 3), np.int32), "input_ids")
