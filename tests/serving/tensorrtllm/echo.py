"""What is said through the stand-in for TensorRT-LLM's backend, whose answers are their prompts over and over."""

from __future__ import annotations

from typing import Any

from tests.serving.raw_requests import TimedResponse
from tests.text.example_tokenizers import tokenizer_of

TOKENIZER = tokenizer_of("llama_2")
"""The kind that loses spaces and breaks characters where tokens are decoded one by one."""
TEXTS = ["the tea  and two tins, the tea.", "日本語のお茶 中文字", "a 👩‍👩‍👧‍👦 family, thumbs 👍🏽 and café crème"]
WITHOUT: dict[str, Any] = {"exclude_input_in_output": True}
QUEUE = 6
ENDLESS = 60_000
"""Tokens of an answer that no test sees the end of: two minutes of the stand-in's steps and more."""


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def thrice(text: str) -> tuple[int, str]:
    """How many tokens the prompt said three times is, and its text."""
    ids = ids_of(text) * 3
    return len(ids), TOKENIZER.decode(ids)


def text_of(responses: list[TimedResponse]) -> str:
    return "".join(response.text for response in responses)
