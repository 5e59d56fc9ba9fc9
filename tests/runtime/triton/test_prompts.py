"""What preprocessing makes of texts and conversations, where no Triton runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from inflight.common.request_error import RequestError
from inflight.runtime.triton.prompts import PromptReader
from inflight.text import template_limits as limits
from inflight.text.tokenizer import load_tokenizer
from tests.fixtures.errors import raises
from tests.runtime.triton.request_inputs import inputs_of
from tests.text.template_examples import CHATML, write_directory

MESSAGES = json.dumps([{"role": "user", "content": "tea"}]).encode()


def reader(directory: Path) -> PromptReader:
    return PromptReader(load_tokenizer(str(directory)), str(directory), 1000, 300, add_special_tokens=False)


def read(prompts: PromptReader, **arrays: Any) -> tuple[list[list[int]], list[int]]:
    """The token ids of each prompt, and what each piece of the work was said to take."""
    costs = list[int]()

    def work() -> Any:
        ids = yield from prompts.read(inputs_of(**arrays))
        found.extend(ids)

    found = list[list[int]]()
    costs.extend(work())
    return found, costs


def column(*texts: bytes) -> Any:
    return np.array([[text] for text in texts], dtype=np.object_)


@pytest.mark.parametrize(
    "settings",
    [{"chat_template": [1]}, {"chat_template": "x", "additional_special_tokens": 5}, {"chat_template": "{% if %}"}],
)
def test_a_broken_template_matters_to_conversations_alone(tmp_path: Path, settings: dict[str, Any]) -> None:
    prompts = reader(write_directory(tmp_path, **settings))
    text = load_tokenizer(str(tmp_path)).encode("tea", add_special_tokens=False).ids
    assert read(prompts, QUERY=column(b"tea")) == ([text], [3])
    with raises(RequestError, "no_chat_template"):
        read(prompts, QUERY=column(b""), MESSAGES=column(MESSAGES))


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    prompts = reader(write_directory(tmp_path))
    ids = np.array([[7, 7, 299], [0, 1, 2]], dtype=np.int32)
    assert read(prompts, PROMPT_TOKEN_IDS=ids) == (ids.tolist(), [])
    for wrong in (np.array([[300]]), np.array([[-1]])):
        with raises(RequestError, "invalid_token_ids"):
            read(prompts, PROMPT_TOKEN_IDS=wrong)
    with raises(RequestError, "invalid_request"):
        read(prompts, PROMPT_TOKEN_IDS=ids, QUERY=column(b"tea", b""))


@pytest.mark.parametrize("bos", ["<|im_start|>", {"content": "<|im_start|>"}, None, "no such token"])
def test_an_empty_text_begins_with_the_first_token_if_there_is_one(tmp_path: Path, bos: Any) -> None:
    directory = write_directory(tmp_path, bos_token=bos)
    tokenizer = load_tokenizer(str(directory))
    tokenizer.post_processor = TemplateProcessing(single="$A")
    prompts = PromptReader(tokenizer, str(directory), 1000, 300, add_special_tokens=True)
    if bos in (None, "no such token"):
        with raises(RequestError, "empty_prompt"):
            read(prompts, QUERY=column(b""))
    else:
        assert read(prompts, QUERY=column(b"")) == ([[tokenizer.token_to_id("<|im_start|>")]], [0])


def test_the_conversations_of_a_request_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = reader(write_directory(tmp_path, CHATML))
    monkeypatch.setattr(limits, "_MAX_OUTPUT_CHARACTERS", 100)
    assert len(read(prompts, QUERY=column(b""), MESSAGES=column(MESSAGES))[0]) == 1
    many = {"QUERY": column(*[b""] * 20), "MESSAGES": column(*[MESSAGES] * 20)}
    with raises(RequestError, "invalid_messages", naming="100"):
        read(prompts, **many)


def test_what_goes_with_messages_is_bounded_before_a_template_gets_it(tmp_path: Path) -> None:
    prompts = reader(write_directory(tmp_path, CHATML))
    kwargs = json.dumps({"unused": "x" * 1_000_000}).encode()
    with raises(RequestError, "prompt_too_long"):
        read(prompts, QUERY=column(b""), MESSAGES=column(MESSAGES), CHAT_TEMPLATE_KWARGS=column(kwargs))


def test_what_goes_with_messages_counts_as_work_too(tmp_path: Path) -> None:
    prompts = reader(write_directory(tmp_path, CHATML))
    kwargs = json.dumps({"unused": "x" * 10_000}).encode()
    given = {"QUERY": column(b""), "MESSAGES": column(MESSAGES), "CHAT_TEMPLATE_KWARGS": column(kwargs)}
    assert read(prompts, **given)[1][0] == len(MESSAGES) + len(kwargs)


def test_a_text_with_far_too_many_tokens_is_not_tokenized_to_its_end(tmp_path: Path) -> None:
    """By its size alone it might be short enough: some token is as long as 200 of its tokens."""
    prompts, _ = with_a_long_token(tmp_path)
    costs = list[int]()
    with raises(RequestError, "prompt_too_long"):
        costs.extend(prompts.read(inputs_of(QUERY=column(b"a" * 100_000, b"tea"))))
    assert 0 < sum(costs) < 50_000


def test_a_text_with_few_tokens_for_its_length_is_taken(tmp_path: Path) -> None:
    prompts, token_id = with_a_long_token(tmp_path)
    ids, costs = read(prompts, QUERY=column(b"x" * 200 * 500, b"x" * 200))
    assert ids == [[token_id] * 500, [token_id]]
    assert max(costs) == 100_000
    assert costs[-1] == 200


def with_a_long_token(directory: Path) -> tuple[PromptReader, int]:
    """A reader for an engine of 1,000 tokens, and the id of a token of 200 characters."""
    tokenizer = load_tokenizer(str(write_directory(directory)))
    tokenizer.add_tokens(["x" * 200])
    prompts = PromptReader(tokenizer, str(directory), 1000, 300, add_special_tokens=False)
    return prompts, tokenizer.token_to_id("x" * 200)
