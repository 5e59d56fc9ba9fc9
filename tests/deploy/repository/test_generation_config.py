"""How a model samples by default, and whether it has a chat template, as its files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client.model_defaults import as_conversation, with_model_defaults
from inflight_client.sampling import Sampling

from inflight.deploy.repository.configure import has_chat_template, model_sampling

GREEDY = {"temperature": 0.0}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, GREEDY),
        ("{", GREEDY),
        ("[]", GREEDY),
        ({"eos_token_id": 2}, GREEDY),
        ({"do_sample": False, "temperature": 0.9, "top_p": 0.6}, GREEDY),
        ({"do_sample": True}, {"temperature": 1.0}),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
            {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
        ),
        ({"temperature": 0.6}, {"temperature": 0.6}),
        ({"repetition_penalty": 1.2}, GREEDY | {"repetition_penalty": 1.2}),
        ({"do_sample": True, "temperature": "hot", "top_k": None, "top_p": True}, {"temperature": 1.0}),
    ],
)
def test_sampling_is_as_generation_config_says(tmp_path: Path, content: Any, expected: dict[str, Any]) -> None:
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "generation_config.json").write_text(text)
    assert model_sampling(tmp_path) == expected


@pytest.mark.parametrize(
    ("callers", "served", "expected"),
    [
        ({}, {"temperature": 0.7, "top_k": 20}, {"temperature": 0.7, "top_k": 20}),
        ({"temperature": 0.2}, {"temperature": 0.7, "top_k": 20}, {"temperature": 0.2, "top_k": 20}),
        ({"top_p": 0.5}, GREEDY, {"top_p": 0.5, "temperature": 1.0}),
        ({"temperature": 0}, {"temperature": 0.7}, {"temperature": 0}),
        ({}, None, {}),
        ({}, "odd", {}),
    ],
)
def test_a_callers_value_comes_before_the_models(callers: Any, served: Any, expected: Any) -> None:
    assert with_model_defaults(Sampling(**callers), {"sampling": served}) == Sampling(**expected)


def test_a_template_makes_a_conversation_of_a_text(tmp_path: Path) -> None:
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert has_chat_template(tmp_path)
    assert as_conversation("tea?", {"chat_template": True}) == [{"role": "user", "content": "tea?"}]
    assert as_conversation("tea?", {}) == "tea?"
