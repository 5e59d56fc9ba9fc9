"""What the embedded engine can't honour is refused by name, and only where it is really used."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.runtime.messages import RequestError
from inflight.runtime.unsupported_inputs import UNSUPPORTED_INPUTS, check_supported

FLAGS_AND_COUNTS = (
    *("return_context_logits", "return_generation_logits", "prompt_vocab_size", "prompt_table_extra_ids"),
    *("draft_acceptance_threshold", "beam_search_diversity_rate", "embedding_bias", "encoder_output_lengths"),
    *("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size", "skip_cross_attn_blocks"),
)
NEUTRAL = {
    "runtime_top_p_decay": np.ones(1, np.float32),
    "decoder_input_ids": np.array([[50256], [50256]], np.int32),
    "bad_words_list": np.array([[[0], [-1]]], np.int32),
    **dict.fromkeys(FLAGS_AND_COUNTS, np.zeros((1, 3), np.float32)),
}


@pytest.mark.parametrize("name", UNSUPPORTED_INPUTS)
def test_a_neutral_value_asks_for_nothing(name: str) -> None:
    check_supported(name, np.zeros((1, 0), np.float32), name)
    if name in NEUTRAL:
        check_supported(name, NEUTRAL[name], name)


@pytest.mark.parametrize("name", UNSUPPORTED_INPUTS)
def test_an_input_that_is_used_is_refused_by_its_name_with_the_reason(name: str) -> None:
    sentence = f"^{name} is not supported by the embedded engine: .+; leave it out$"
    with pytest.raises(RequestError, match=sentence) as raised:
        check_supported(name, np.full((1, 2), 3, np.int32), name)
    assert raised.value.code == "unsupported_input"


def test_any_other_input_passes() -> None:
    check_supported("input_ids", np.ones((1, 3), np.int32), "input_ids")
