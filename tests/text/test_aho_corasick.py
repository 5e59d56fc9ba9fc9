"""The first word is found as by looking through the whole, and as soon as nothing earlier can come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.text.stop_words import AhoCorasick

short_words = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5)


def first_of(text: str, words: list[str]) -> int | None:
    return min((text.find(word) for word in words if word in text), default=None)


def undecided_from(text: str, words: list[str]) -> int:
    """Where the longest end of the text starts that a word begins with, or is."""
    return next(start for start in range(len(text) + 1) if any(word.startswith(text[start:]) for word in words))


@given(words=short_words, text=st.text("abcd", max_size=40))
@settings(max_examples=500, deadline=None)
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


@pytest.mark.parametrize(
    ("words", "text", "found", "after"),
    [
        (["end"], "the end.", 4, 7),
        (["aab"], "aaab", 1, 4),
        (["bc", "abcd"], "abcd", 0, 4),
        (["bc", "abcd"], "abce", 1, 4),
        (["a", "ab"], "ab", 0, 1),
        (["ab", "ab"], "cab", 1, 3),
    ],
)
def test_where_the_first_word_begins_and_when_it_is_known(words: list[str], text: str, found: int, after: int) -> None:
    search = AhoCorasick(words)
    decisions = [search.feed(symbol) for symbol in text[:after]]
    assert decisions == [False] * (after - 1) + [True]
    assert search.found == found


def test_symbols_may_be_anything_that_can_be_compared() -> None:
    search = AhoCorasick([(5, 6, 7), (6, 8)])
    assert [search.feed(token_id) for token_id in (5, 6, 8)] == [False, False, True]
    assert search.found == 1


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
