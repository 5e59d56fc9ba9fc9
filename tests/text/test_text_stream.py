"""An answer's text as its tokens come: it continues the prompt, whole character by whole character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.text.text_stream import TextStream
from tests.text.example_tokenizers import (
    KINDS,
    SPECIAL,
    detokenizer_of,
    ids_of,
    sizes_of_chunks,
    texts,
    tokenizer_of,
    whole,
)


def streamed(kind: str, prompt: list[int], ids: list[int], sizes: list[int]) -> list[str]:
    stream = TextStream(tokenizer_of(kind), detokenizer_of(kind, True), prompt)
    pieces, start = list[str](), 0
    while start < len(ids):
        end = start + sizes[len(pieces) % len(sizes)]
        pieces.append(stream.decode(ids[start:end], False, 0))
        start = end
    return [*pieces, stream.decode([], True, 0)]


@given(kind=st.sampled_from(KINDS), prompt=texts, answer=texts, sizes=sizes_of_chunks)
@settings(max_examples=300, deadline=None)
def test_an_answer_continues_its_prompt(kind: str, prompt: str, answer: str, sizes: list[int]) -> None:
    ids = ids_of(kind, f"a tea {prompt}. {answer}")
    prompt_ids, answer_ids = ids[: len(ids) // 2], ids[len(ids) // 2 :]
    pieces = streamed(kind, prompt_ids, answer_ids, sizes)
    before = "".join(streamed(kind, [], prompt_ids, [1])).rstrip("\ufffd")
    assert (before + "".join(pieces)).replace("\ufffd", "") == whole(kind, ids).replace("\ufffd", "")


def test_a_character_that_is_never_whole_is_not_lost_behind_many_end_tokens() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = [*tokenizer.encode("tea 🍵", add_special_tokens=False).ids[:-1], *[tokenizer.token_to_id(SPECIAL)] * 20]
    text = "".join(streamed("byte_level", [], ids, [1]))
    assert text.endswith("\ufffd")
    assert text == whole("byte_level", ids)


@pytest.mark.parametrize("dropped", [0, 3])
def test_characters_of_a_stop_word_are_dropped(dropped: int) -> None:
    ids = ids_of("gemma", "the tea")
    stream = TextStream(tokenizer_of("gemma"), detokenizer_of("gemma", True), [])
    assert stream.decode(ids, True, dropped) == "the tea"[: 7 - dropped]
