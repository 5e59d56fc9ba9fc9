"""What an engine can't honour is refused by name, and only where it is really used."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.engine.interface import BACKENDS
from inflight.runtime.triton.unsupported_inputs import UNSUPPORTED_INPUTS, check_supported
from tests.fixtures.errors import raises

NOT_ZERO = {
    "draft_input_ids": np.zeros((1, 0), np.int32),
    "decoder_input_ids": np.array([[50256], [50256]], np.int32),
}
"""Where zeros are not what asks for nothing: the only token of a decoder, and no words."""
DEFAULTS = {
    "runtime_top_p_decay": np.ones((1, 1), np.float32),
    "retention_decode_priority": np.array([[35]], np.int32),
}
"""Upstream's own, of those that are not zero."""
CALLED = {"openvino": "the embedded engine", "llmapi": "the LLM API's engine"}
EMBEDDED = """
prompt_embedding_table prompt_table_extra_ids prompt_vocab_size mrope_rotary_cos_sin mrope_position_deltas
encoder_input_features encoder_output_lengths decoder_input_ids cross_attention_mask skip_cross_attn_blocks
draft_input_ids draft_logits draft_acceptance_threshold context_phase_params retention_token_range_starts
retention_token_range_ends retention_token_range_priorities retention_token_range_durations_ms
retention_decode_priority retention_decode_duration_ms return_context_logits return_generation_logits
beam_search_diversity_rate runtime_top_p_decay lora_weights lora_config lookahead_window_size
lookahead_ngram_size lookahead_verification_set_size
"""
"""What the embedded engine lacks; an input that left the table would be ignored."""
CASES = [(engine, name) for engine in CALLED for name in UNSUPPORTED_INPUTS[engine]]


def test_each_engine_says_what_it_can_not_do() -> None:
    assert set(UNSUPPORTED_INPUTS) == set(BACKENDS)
    assert UNSUPPORTED_INPUTS["fake"] == UNSUPPORTED_INPUTS["openvino"]
    assert set(UNSUPPORTED_INPUTS["openvino"]) == set(EMBEDDED.split())


def test_the_request_contract_tells_where_the_engines_differ() -> None:
    text = (Path(__file__).parents[3] / "docs" / "request-contract.md").read_text(encoding="utf-8")
    section = text.split("## On the LLM API", 1)[1]
    rows = {
        name: line for line in section.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)
    }
    embedded, llm_api = UNSUPPORTED_INPUTS["openvino"], UNSUPPORTED_INPUTS["llmapi"]
    differing = {name for name in embedded.keys() | llm_api.keys() if embedded.get(name) != llm_api.get(name)}
    assert differing - rows.keys() == set()
    assert {name for name in differing & rows.keys() if "refused" in rows[name]} == differing & llm_api.keys()


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_a_neutral_value_asks_for_nothing(engine: str, name: str) -> None:
    check_supported(engine, name, np.zeros((1, 0), np.float32), name)
    check_supported(engine, name, NOT_ZERO.get(name, np.zeros((1, 3), np.float32)), name)


@pytest.mark.parametrize("engine", CALLED)
@pytest.mark.parametrize("name", DEFAULTS)
def test_upstreams_default_asks_for_nothing(engine: str, name: str) -> None:
    check_supported(engine, name, DEFAULTS[name], name)


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_an_input_that_is_used_is_refused_by_its_name_with_the_reason(engine: str, name: str) -> None:
    with raises(RequestError, "unsupported_input", naming=(name, CALLED[engine])):
        check_supported(engine, name, np.full((1, 2), 3, np.int32), name)


@pytest.mark.parametrize(
    ("engine", "name"), [("openvino", "input_ids"), ("llmapi", "bad_words_list"), ("llmapi", "embedding_bias")]
)
def test_any_other_input_passes(engine: str, name: str) -> None:
    check_supported(engine, name, np.ones((1, 3), np.int32), name)
