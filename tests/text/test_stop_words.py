"""Stop words are cut as if the whole answer were looked through, for several kinds of tokenizer, however it comes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.runtime.engine.scheduler import cut_beam
from inflight.runtime.messages import Beam
from inflight.text.detokenizer import CONTEXT_TOKENS, Chunk, Detokenizer
from inflight.text.stop_words import AhoCorasick, Released, StopWords
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


def unused() -> Detokenizer:
    raise AssertionError("ids need no tokenizer")


def stop_words_of(
    kind: str = "", ids: Sequence[Sequence[int]] = (), texts: Sequence[str] = (), min_tokens: int = 0, skip: bool = True
) -> StopWords:
    return StopWords(ids, texts, min_tokens, (lambda: detokenizer_of(kind, skip)) if kind else unused)


def fed(stop_words: StopWords, token_ids: list[int], sizes: Sequence[int] = (1,)) -> list[Released]:
    """What passes, step by step; the last step brings no token, as with an end token."""
    passed, start, turn = list[Released](), 0, 0
    while start < len(token_ids):
        end = start + sizes[turn % len(sizes)]
        passed.append(stop_words.feed(token_ids[start:end]))
        if passed[-1].found:
            return passed
        start, turn = end, turn + 1
    return [*passed, stop_words.feed((), ended=True)]


def shown(kind: str, passed: list[Released], skip: bool = True) -> str:
    """The text that postprocessing makes of it, chunk by chunk."""
    context, shown = list[int](), ""
    for number, (token_ids, _, _, dropped) in enumerate(passed, start=1):
        chunk = Chunk(token_ids, context, final=number == len(passed))
        (text,) = detokenizer_of(kind, skip).texts([chunk])
        assert dropped <= len(text)
        shown += text[: len(text) - dropped]
        said = [token_id for token_id in token_ids if token_id not in detokenizer_of(kind, skip).special_token_ids]
        context = [*context, *said][-CONTEXT_TOKENS:]
    return shown


def shown_whole(kind: str, passed: list[Released], skip: bool = True) -> str:
    """The text of a single response."""
    text = whole(kind, [token for one in passed for token in one.token_ids], skip)
    return text[: len(text) - passed[-1].dropped_characters]


def first_of(text: str, words: Sequence[str], start: int = 0) -> int | None:
    found = [text.find(word, start) for word in words if word]
    return min((position for position in found if position >= 0), default=None)


@st.composite
def answers(draw: st.DrawFn, kind: str, skip: bool) -> tuple[list[int], list[str]]:
    """Tokens, and stop words most of which are in their text or nearly so."""
    specials = st.sampled_from(["", SPECIAL, ADDED, SPECIAL * 2])
    parts = draw(st.lists(st.tuples(texts, specials), max_size=4))
    token_ids = ids_of(kind, "x" + "".join(text + special for text, special in parts))
    text = whole(kind, token_ids, skip)
    words = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        word = text[start : start + draw(st.integers(0, 6))]
        words.append(word + draw(st.sampled_from(["", "", "", "e", " ", "中"])))
    return token_ids, words + draw(st.lists(st.sampled_from(FRAGMENTS), max_size=1))


@pytest.mark.parametrize("words", [[], ["\ufffd"]], ids=["no_word", "the_word"])
def test_a_character_that_stays_open_is_kept_behind_many_special_tokens(words: list[str]) -> None:
    token_ids = ids_of("llama_2", "x\ufffd" + SPECIAL * (CONTEXT_TOKENS + 1))
    passed = fed(stop_words_of("llama_2", texts=words), token_ids)
    assert passed[-1].found == bool(words)
    assert shown("llama_2", passed) == ("x" if words else "x\ufffd")


@given(
    data=st.data(),
    kind=st.sampled_from(KINDS),
    sizes=sizes_of_chunks,
    skip=st.booleans(),
    min_tokens=st.just(0) | st.integers(0, 12),
)
@settings(max_examples=6 * settings().max_examples, deadline=None)
def test_the_text_is_cut_at_the_first_stop_word_of_the_whole(
    data: st.DataObject, kind: str, sizes: list[int], skip: bool, min_tokens: int
) -> None:
    token_ids, words = data.draw(answers(kind, skip))
    passed = fed(stop_words_of(kind, texts=words, min_tokens=min_tokens, skip=skip), token_ids, sizes)
    text = whole(kind, token_ids, skip)
    chunks = [Chunk(token_ids[:min_tokens], [], final) for final in (False, True)]
    spared, spared_with_open = detokenizer_of(kind, skip).texts(chunks)
    start = len(spared) + (spared != spared_with_open)  # a character that they begin is theirs
    end = first_of(text, words, start) if len(token_ids) > min_tokens else None
    assert passed[-1].found == (end is not None)
    assert shown(kind, passed, skip) == text[:end]
    assert shown_whole(kind, passed, skip) == text[:end]
    tokens = [token for one in passed for token in one.token_ids]
    assert tokens == token_ids[: len(tokens)]
    assert len(tokens) >= min(min_tokens, len(token_ids))
    assert not any(one.found or one.dropped_characters for one in passed[:-1])


@given(data=st.data(), kind=st.sampled_from(KINDS))
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_nothing_waits_longer_than_it_must(data: st.DataObject, kind: str) -> None:
    """After each token, all are out that end before a stop word may begin; a whole one is known at once."""
    token_ids, words = data.draw(answers(kind, True))
    words = list(filter(None, words))
    stop_words, sent = stop_words_of(kind, texts=words), 0
    boundaries = [0]
    for count, token_id in enumerate(token_ids, start=1):
        passed = stop_words.feed([token_id])
        sent += len(passed.token_ids)
        (text,) = detokenizer_of(kind, True).texts([Chunk(token_ids[:count], [], final=False)])
        boundaries.append(len(text))
        undecided = undecided_from(text, words)
        first = first_of(text, words)
        assert passed.found == (first is not None and first <= undecided)
        if passed.found:
            return
        assert boundaries[sent] == max(length for length in boundaries if length <= undecided)


@given(data=st.data(), sizes=sizes_of_chunks)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_any_byte_level_tokens_are_cut_alike(data: st.DataObject, sizes: list[int]) -> None:
    """A model may produce any ids, also bytes that are no UTF-8, and a stop word may be of replacement characters."""
    size = tokenizer_of("byte_level").get_vocab_size(with_added_tokens=False)
    token_ids = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    text = whole("byte_level", token_ids)
    start = data.draw(st.integers(0, len(text)))
    word = text[start : start + data.draw(st.integers(1, 4))] or "\ufffd"
    passed = fed(stop_words_of("byte_level", texts=[word]), token_ids, sizes)
    assert shown("byte_level", passed) == text[: first_of(text, [word])]


@given(data=st.data(), kind=st.sampled_from(sorted(BYTE_FALLBACK)), sizes=sizes_of_chunks)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_bytes_that_are_no_text_harm_nobody(data: st.DataObject, kind: str, sizes: list[int]) -> None:
    """Byte tokens that make no character decode otherwise the more there are; still all that is sent is decoded."""
    tokenizer = tokenizer_of(kind)
    some = st.integers(0, tokenizer.get_vocab_size() - 1)
    token_ids = data.draw(st.lists(some, max_size=40))
    passed = fed(stop_words_of(kind, texts=["e", "\ufffdé", "中"]), token_ids, sizes)
    tokens = [token for one in passed for token in one.token_ids]
    assert tokens == token_ids[: len(tokens)]
    assert "e" not in shown(kind, passed)


small_ids = st.lists(st.integers(0, 3), max_size=30)


@given(
    token_ids=small_ids,
    words=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4),
    sizes=sizes_of_chunks,
    min_tokens=st.integers(0, 6),
)
@settings(max_examples=8 * settings().max_examples, deadline=None)
def test_tokens_are_cut_at_the_first_stop_word_and_their_log_probs_with_them(
    token_ids: list[int], words: list[list[int]], sizes: list[int], min_tokens: int
) -> None:
    log_probs = [-float(number) for number in range(len(token_ids))]
    stop_words = stop_words_of(ids=words, min_tokens=min_tokens)
    passed, start, turn = list[Released](), 0, 0
    while start < len(token_ids) and not (passed and passed[-1].found):
        end = start + sizes[turn % len(sizes)]
        passed.append(
            stop_words.feed(token_ids[start:end], [-float(n) for n in range(start, min(end, len(token_ids)))])
        )
        start, turn = end, turn + 1
    if not (passed and passed[-1].found):
        passed.append(stop_words.feed((), ended=True))
    firsts = (
        start
        for start in range(min_tokens, len(token_ids))
        if any(word and token_ids[start : start + len(word)] == word for word in words)
    )
    expected = token_ids[: next(firsts, None)]
    assert [token for one in passed for token in one.token_ids] == expected
    assert [log_prob for one in passed for log_prob in one.log_probs] == log_probs[: len(expected)]
    assert passed[-1].found == (len(expected) < len(token_ids))
    assert not any(one.dropped_characters for one in passed)


def test_ids_that_may_belong_to_a_word_wait_until_it_is_decided() -> None:
    stop_words = stop_words_of(ids=[(5, 6, 7)])
    out = [stop_words.feed([token_id]).token_ids for token_id in (4, 5, 6, 5, 6, 8)]
    assert out == [(4,), (), (), (5, 6), (), (5, 6, 8)]


def test_a_word_that_is_the_first_token_leaves_nothing(kind: str) -> None:
    token_ids = ids_of(kind, "the tea")
    (passed,) = fed(stop_words_of(kind, texts=[whole(kind, token_ids[:1])]), token_ids)
    assert passed == Released((), (), found=True)


@pytest.mark.parametrize(
    ("ids_word", "text_word", "left"),
    [(" tin", "tea", "the "), ("tea", " tin", "the tea"), (" two", "a t", "the te"), (" tin", "a tin", "the te")],
)
def test_of_a_word_as_ids_and_one_as_text_the_one_that_is_whole_first_counts(
    ids_word: str, text_word: str, left: str
) -> None:
    kind = "byte_level"
    token_ids = ids_of(kind, "the tea tin two")
    stop_words = stop_words_of(kind, ids=[ids_of(kind, ids_word)], texts=[text_word])
    assert shown(kind, fed(stop_words, token_ids)) == left


def test_the_same_word_as_ids_and_as_text_is_cut_once() -> None:
    kind = "byte_level"
    token_ids = [*ids_of(kind, "the tea"), *ids_of(kind, " tin"), *ids_of(kind, "two")]
    stop_words = stop_words_of(kind, ids=[ids_of(kind, " tin")], texts=[" tin"])
    passed = fed(stop_words, token_ids)
    assert shown(kind, passed) == "the tea"
    assert passed[-1].dropped_characters == 0


def test_beams_are_cut_each_of_its_own() -> None:
    kind = "byte_level"
    with_word, without = ids_of(kind, "the tea tin"), ids_of(kind, "the two")
    beam = Beam(tuple(with_word), tuple(-1.0 for _ in with_word), -float(len(with_word)))
    cut = cut_beam(beam, stop_words_of(kind, texts=["a t"]))
    assert cut.token_ids == tuple(with_word[: len(cut.token_ids)])
    assert "the te".startswith(whole(kind, list(cut.token_ids)))
    assert cut.cumulative_log_prob == -float(len(cut.token_ids)) == sum(cut.log_probs)
    other = Beam(tuple(without), (), -3.0)
    assert cut_beam(other, stop_words_of(kind, texts=["a t"])) == other


def test_a_cut_beam_without_log_probs_keeps_its_sum() -> None:
    assert cut_beam(Beam((5, 6, 7), (), -3.0), stop_words_of(ids=[(6,)])) == Beam((5,), (), -3.0)


short_words = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5)


def undecided_from(text: str, words: list[str]) -> int:
    """Where the longest end of the text starts that a word begins with, or is."""
    return next(start for start in range(len(text) + 1) if any(word.startswith(text[start:]) for word in [*words, ""]))


@given(words=short_words, text=st.text("abcd", max_size=40))
@settings(max_examples=8 * settings().max_examples, deadline=None)
def test_after_each_symbol_it_knows_what_looking_through_the_whole_would_show(words: list[str], text: str) -> None:
    search = AhoCorasick(words)
    for taken, symbol in enumerate(text, start=1):
        decided = search.feed(symbol)
        seen = text[:taken]
        first = first_of(seen, words)
        assert search.found == first
        assert search.undecided == undecided_from(seen, words)
        assert decided == (first is not None and first <= search.undecided)
        if decided:
            assert first_of(text, words) == first
            return


class _CountedSymbol(str):
    """A symbol that counts how often any of them is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        _CountedSymbol.looked_up += 1
        return str.__hash__(self)

    __eq__ = str.__eq__


@pytest.mark.parametrize("text", ["ab" * 2_000, "a" * 4_000, ("a" * 799 + "c") * 5], ids=["ab", "a", "ac"])
def test_a_long_word_costs_no_more_a_symbol_than_a_short_one(text: str) -> None:
    """Whatever the text, each symbol is looked at a few times on average; there is no nesting to run out of."""
    search = AhoCorasick(["a" * 800 + "b", "a" * 10 + "c" * 800])
    symbols = list(map(_CountedSymbol, text))
    before = _CountedSymbol.looked_up
    assert not any(map(search.feed, symbols))
    assert _CountedSymbol.looked_up - before < 5 * len(text)
