"""Text that may yet change is held back, and given out whole in the end."""

from __future__ import annotations

import random

import pytest
from inflight_client.deployments.stop_text_buffer import StopTextBuffer
from inflight_client.errors import InflightError

from tests.fixtures.errors import raises


def given(held: StopTextBuffer, texts: list[str]) -> list[str]:
    """What comes out for each text, and at the end, which comes by itself."""
    out = []
    for text in texts:
        out.append(held.feed(text))
        if held.stopped:
            return out
    return [*out, held.flush(None)]


def test_without_stop_words_pieces_go_through() -> None:
    assert given(StopTextBuffer((), whole=False), ["a", "", " b"]) == ["a", "", " b", ""]


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (("END",), ["one E", "N", "D two"], ["one ", "", ""]),
        (("END",), ["one E", "N", "X"], ["one ", "", "ENX", ""]),
        (("END",), ["one EN"], ["one ", "EN"]),
        (("END",), ["one END"], ["one "]),
        (("b", "ab"), ["xab"], ["x"]),
        (("aab",), ["aaab"], ["a"]),
        (("stop", "sto"), ["st", "o"], ["", ""]),
    ],
)
def test_the_text_ends_before_the_first_stop_word(
    stops: tuple[str, ...], pieces: list[str], expected: list[str]
) -> None:
    assert given(StopTextBuffer(stops, whole=False), pieces) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["The", "The quick", "The quick fox"], ["The", " quick", " fox", ""]),
        (["ca", "ca\ufffd", "café"], ["ca", "", "fé", ""]),
        (["ca", "ca\ufffd"], ["ca", "", "\ufffd"]),
        (["Hello", "Hello ", "Hello,"], ["Hello", "", ",", ""]),  # cleaned up
        (["do", "do n", "don't"], ["do", "", "n't", ""]),
        (["abc", "ab", "abcd"], ["abc", "", "d", ""]),  # shorter for once
    ],
)
def test_of_whole_texts_what_is_new_is_given(texts: list[str], expected: list[str]) -> None:
    assert given(StopTextBuffer((), whole=True), texts) == expected


def test_a_last_whole_text_counts_as_it_is() -> None:
    held = StopTextBuffer((" brown",), whole=True)
    assert [held.feed("The"), held.feed("The br")] == ["The", ""]
    assert held.flush("The") == ""  # the stop word's tokens were taken back
    assert not held.stopped


def test_text_that_was_given_and_is_taken_back_is_an_error() -> None:
    held = StopTextBuffer((), whole=True)
    held.feed("The quick")
    with raises(InflightError, "answer_damaged"):
        held.feed("The slow")
    with raises(InflightError, "answer_damaged"):
        held.flush("The")


def test_however_a_text_is_cut_the_same_comes_out() -> None:
    chance = random.Random(5)
    for _ in range(500):
        text = "".join(chance.choices("ab .", k=chance.randrange(30)))
        stops = tuple({"".join(chance.choices("ab .", k=chance.randrange(1, 4))) for _ in range(chance.randrange(3))})
        cuts = sorted(chance.choices(range(len(text) + 1), k=5))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        wholes = [text[:end] for end in [*cuts, len(text)]]
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        expected = text[: min(places)] if places else text
        assert "".join(given(StopTextBuffer(stops, whole=False), pieces)) == expected
        assert "".join(given(StopTextBuffer(stops, whole=True), wholes)) == expected
