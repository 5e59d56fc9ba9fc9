"""What the models of encoders read from a request."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.tokenize import PlainText
from inflight.runtime.triton.encoders.tasks import TASKS, TextRequest
from tests.runtime.triton.request_inputs import inputs_of


def read(
    task: str,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
    matryoshka: tuple[int, ...] | None = None,
    **arrays: Any,
) -> TextRequest:
    facts = ("openvino", task, (), 16, 100, 8, 0, "right", False, matryoshka)
    description = EncoderDescription(*facts, prompts or {}, default_prompt, "none", ("a", "b"), {})
    return TASKS[task](description).read(inputs_of(**arrays))


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
@pytest.mark.parametrize("asked", ["document", "passage"])
def test_a_document_s_prompt_is_found_by_each_name_that_models_give_it(name: str, asked: str) -> None:
    found = read("embed", {"query": "?", name: "D: "}, text_input=[[b"tea"]], input_type=[[asked.encode()]])
    assert found.texts == [PlainText("D: tea", False)]


def test_the_query_of_many_documents_is_held_once() -> None:
    found = read("rerank", query=[b"q" * 1000], documents=[b"ten chars."] * 50)
    assert found.characters == 1000 + 50 * 10


@pytest.mark.parametrize(
    ("task", "given", "expected"),
    [
        ("embed", {"text_input": [[b"tea"]]}, PlainText("ask: tea", False)),
        ("classify", {"text_input": [[b"tea"]]}, PlainText("ask: tea", False)),
        ("rerank", {"query": [b"tea"], "documents": [b"leaves"]}, PlainText("ask: tea", False, "leaves")),
    ],
)
def test_the_default_prompt_goes_before_the_text_or_the_query(
    task: str, given: dict[str, Any], expected: PlainText
) -> None:
    assert read(task, {"query": "ask: "}, "query", **given).texts == [expected]


@pytest.mark.parametrize(
    ("trained", "allowed"), [(None, [8]), ((), [1, 3, 4, 8]), ((2, 4), [4, 8])], ids=["whole", "any", "some"]
)
def test_vectors_have_only_lengths_that_the_model_was_trained_for(
    trained: tuple[int, ...] | None, allowed: list[int]
) -> None:
    taken = []
    for dimensions in (0, 1, 3, 4, 8, 9):
        with suppress(RequestError):
            read("embed", matryoshka=trained, text_input=[[b"tea"]], dimensions=[[dimensions]])
            taken.append(dimensions)
    assert taken == allowed
