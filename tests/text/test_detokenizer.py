"""Streamed text, joined, equals decoding all tokens at once: for several kinds of tokenizer, any cut, any text.

An answer's text continues that of its prompt.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.text.detokenizer import CONTEXT_TOKENS, REPLACEMENT, Chunk
from inflight.text.text_stream import TextStream
from tests.text.example_tokenizers import (
    ADDED,
    BYTE_FALLBACK,
    FRAGMENTS,
    KINDS,
    SPECIAL,
    detokenizer_of,
    ids_of,
    sizes_of_chunks,
    texts,
    tokenizer_of,
    whole,
)

MANY_SPECIAL = "." + SPECIAL * 12
"""A context may hold nothing else; a character still open before so many would be lost, hence the full stop."""


def chunks_of(token_ids: list[int], sizes: list[int]) -> list[Chunk]:
    """Cut an answer as an engine does: each chunk with the last tokens before it, the last one marked."""
    chunks, start, turn = [], 0, 0
    while start < len(token_ids):
        end = start + sizes[turn % len(sizes)]
        chunks.append(Chunk(token_ids[start:end], token_ids[max(0, start - CONTEXT_TOKENS) : start], final=False))
        start, turn = end, turn + 1
    # An end token is taken off the answer, so the last chunk is often empty.
    return [*chunks, Chunk([], token_ids[-CONTEXT_TOKENS:], final=True)]


def streamed(kind: str, token_ids: list[int], sizes: list[int], skip: bool = True) -> list[str]:
    detokenizer = detokenizer_of(kind, skip)
    return [detokenizer.texts([chunk])[0] for chunk in chunks_of(token_ids, sizes)]


@given(
    kind=st.sampled_from(KINDS),
    parts=st.lists(st.tuples(texts, st.sampled_from(["", SPECIAL, ADDED, SPECIAL * 2, MANY_SPECIAL])), max_size=4),
    sizes=sizes_of_chunks,
    skip=st.booleans(),
)
@settings(max_examples=4 * settings().max_examples, deadline=None)
def test_streamed_text_equals_the_whole(kind: str, parts: list[tuple[str, str]], sizes: list[int], skip: bool) -> None:
    text = "x" + "".join(text + special for text, special in parts)
    token_ids = ids_of(kind, text)
    pieces = streamed(kind, token_ids, sizes, skip)
    assert "".join(pieces) == whole(kind, token_ids, skip)
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in pieces), "a character was cut"


@given(data=st.data(), sizes=sizes_of_chunks, skip=st.booleans())
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_byte_level_pieces_may_come_in_any_order(data: st.DataObject, sizes: list[int], skip: bool) -> None:
    """A model may produce any ids, also bytes that are no UTF-8."""
    tokenizer = tokenizer_of("byte_level")
    ordinary = st.integers(0, tokenizer.get_vocab_size(with_added_tokens=False) - 1)
    token_ids = data.draw(st.lists(ordinary | st.just(tokenizer.token_to_id(ADDED)), max_size=60))
    assert "".join(streamed("byte_level", token_ids, sizes, skip)) == whole("byte_level", token_ids, skip)


@given(
    kind=st.sampled_from(sorted(BYTE_FALLBACK)),
    before=st.sampled_from(["the tea", "中 the two", "日本語 é"]),
    garbage=st.lists(st.integers(0x80, 0xFF), min_size=1, max_size=20),
    after=st.sampled_from(["", " the tea", "中中"]),
    sizes=sizes_of_chunks,
)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_bytes_that_are_no_text_harm_nothing_else(
    kind: str, before: str, garbage: list[int], after: str, sizes: list[int]
) -> None:
    """Byte tokens that make no character show as replacement characters; the text around them stays."""
    tokenizer = tokenizer_of(kind)
    # A word before the bytes, so that they are a separate run.
    token_ids = tokenizer.encode(before + " the", add_special_tokens=False).ids
    token_ids += [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in garbage]
    token_ids += tokenizer.encode(f"{ADDED}{after}", add_special_tokens=False).ids
    text = "".join(streamed(kind, token_ids, sizes))
    assert text.startswith(before + " the")
    assert text.endswith(whole(kind, token_ids).rpartition(ADDED)[2])
    assert ADDED in text


def test_a_character_of_several_tokens_comes_whole_and_at_once(kind: str) -> None:
    token_ids = ids_of(kind, "tea 🍵 two")
    pieces = streamed(kind, token_ids, [1])
    assert [piece for piece in pieces if "🍵" in piece], pieces
    assert "".join(pieces) == "tea 🍵 two"
    # Everything is out before the last, empty chunk: nothing waits longer than it must.
    assert pieces[-1] == ""


def test_an_answer_cut_in_mid_character_ends_with_a_replacement(kind: str) -> None:
    token_ids = ids_of(kind, "tea 🍵🍵")[:-1]
    for sizes in ([1], [3], [len(token_ids)]):
        assert "".join(streamed(kind, token_ids, sizes)) == "tea 🍵" + REPLACEMENT
    assert detokenizer_of(kind, True).texts([Chunk(token_ids, [], final=True)]) == ["tea 🍵" + REPLACEMENT]


def test_chunks_of_many_streams_in_one_call_do_not_mix(kind: str) -> None:
    answers = [chunks_of(ids_of(kind, text), [size]) for size, text in enumerate(FRAGMENTS, start=1)]
    detokenizer = detokenizer_of(kind, True)
    together = detokenizer.texts([chunk for answer in answers for chunk in answer])
    alone = [detokenizer.texts([chunk])[0] for answer in answers for chunk in answer]
    assert together == alone
    assert detokenizer.texts([]) == []


def continued(kind: str, prompt: list[int], ids: list[int], sizes: list[int]) -> list[str]:
    stream = TextStream(detokenizer_of(kind, True), prompt, {})
    pieces, start = list[str](), 0
    while start < len(ids):
        end = start + sizes[len(pieces) % len(sizes)]
        pieces.append(stream.decode(ids[start:end], False, 0))
        start = end
    return [*pieces, stream.decode([], True, 0)]


@given(kind=st.sampled_from(KINDS), prompt=texts, answer=texts, sizes=sizes_of_chunks)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_an_answer_continues_its_prompt(kind: str, prompt: str, answer: str, sizes: list[int]) -> None:
    ids = ids_of(kind, f"a tea {prompt}. {answer}")
    prompt_ids, answer_ids = ids[: len(ids) // 2], ids[len(ids) // 2 :]
    pieces = continued(kind, prompt_ids, answer_ids, sizes)
    before = "".join(continued(kind, [], prompt_ids, [1])).rstrip("\ufffd")
    assert (before + "".join(pieces)).replace("\ufffd", "") == whole(kind, ids).replace("\ufffd", "")


def test_a_character_that_is_never_whole_is_not_lost_behind_many_end_tokens() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = [*tokenizer.encode("tea 🍵", add_special_tokens=False).ids[:-1], *[tokenizer.token_to_id(SPECIAL)] * 20]
    text = "".join(continued("byte_level", [], ids, [1]))
    assert text.endswith("\ufffd")
    assert text == whole("byte_level", ids)


@pytest.mark.parametrize("dropped", [0, 3])
def test_characters_of_a_stop_word_are_dropped(dropped: int) -> None:
    ids = ids_of("gemma", "the tea")
    stream = TextStream(detokenizer_of("gemma", True), [], {})
    assert stream.decode(ids, True, dropped) == "the tea"[: 7 - dropped]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[1], [3, 2], [50]])
def test_special_tokens_that_are_asked_for_stay_in_the_text(kind: str, sizes: list[int]) -> None:
    skipping = detokenizer_of(kind, True)
    keeping = skipping.keeping(f"<a>{SPECIAL}<b>")
    ids = ids_of(kind, f"the two{SPECIAL}é 中{SPECIAL}")
    texts = [keeping.texts([chunk])[0] for chunk in chunks_of(ids, sizes)]
    assert "".join(texts) == whole(kind, ids, False)
    assert skipping.keeping("<a>") is skipping
    stream = TextStream(keeping, [], {})
    assert "".join(stream.decode([each], False, 0) for each in ids) + stream.decode([], True, 0) == "".join(texts)
