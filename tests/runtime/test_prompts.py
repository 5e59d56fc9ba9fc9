"""What preprocessing makes of texts and conversations, where no Triton runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.runtime import chat_bounds
from inflight.runtime.messages import RequestError
from inflight.runtime.prompts import PromptReader
from inflight.runtime.tokenizer import load_tokenizer
from tests.runtime.chat_templates import CHATML, write_directory
from tests.runtime.sent import inputs_of

MESSAGES = json.dumps([{"role": "user", "content": "tea"}]).encode()


def reader(directory: Path) -> PromptReader:
    return PromptReader(load_tokenizer(str(directory)), str(directory), 1000, add_special_tokens=False)


def column(*texts: bytes) -> Any:
    return np.array([[text] for text in texts], dtype=np.object_)


@pytest.mark.parametrize(
    "settings",
    [{"chat_template": [1]}, {"chat_template": "x", "additional_special_tokens": 5}, {"chat_template": "{% if %}"}],
)
def test_a_broken_template_matters_to_conversations_alone(tmp_path: Path, settings: dict[str, Any]) -> None:
    prompts = reader(write_directory(tmp_path, **settings))
    text = load_tokenizer(str(tmp_path)).encode("tea", add_special_tokens=False).ids
    assert prompts.read(inputs_of(QUERY=column(b"tea"))) == [text]
    with pytest.raises(RequestError) as refusal:
        prompts.read(inputs_of(QUERY=column(b""), MESSAGES=column(MESSAGES)))
    assert refusal.value.code == "no_chat_template"


def test_the_conversations_of_a_request_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = reader(write_directory(tmp_path, CHATML))
    monkeypatch.setattr(chat_bounds, "_MOST_SHOWN", 100)
    assert len(prompts.read(inputs_of(QUERY=column(b""), MESSAGES=column(MESSAGES)))) == 1
    many = {"QUERY": column(*[b""] * 20), "MESSAGES": column(*[MESSAGES] * 20)}
    with pytest.raises(RequestError, match="makes more than 100 characters"):
        prompts.read(inputs_of(**many))
