"""Words as token ids in upstream's tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.common.request_error import RequestError
from inflight.runtime.triton.word_tensors import MAX_WORDS, check_words, pack, unpack, weighted_words
from tests.fixtures.errors import raises

WORDS = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4), max_size=5)


def test_words_are_laid_out_as_upstream_has_them() -> None:
    assert pack([[[1, 2], [3]], [[4]]]).tolist() == [[[1, 2, 3], [2, 3, -1]], [[4, 0, 0], [1, -1, -1]]]
    assert pack([[], []]).shape == (2, 2, 0)


@given(st.lists(WORDS, min_size=1, max_size=3))
def test_what_is_packed_comes_out_again(rows: list[list[list[int]]]) -> None:
    packed = pack(rows)
    assert packed.dtype == np.int32
    assert [unpack(row, "words") for row in packed] == [tuple(map(tuple, words)) for words in rows]


@pytest.mark.parametrize(
    "row",
    [
        [[1, 2, 3], [4, -1, -1]],  # beyond the ids
        [[1, 2, 3], [2, 1, -1]],  # backwards
        [[1, 2, 3], [0, -1, -1]],  # an empty word
    ],
)
def test_ends_that_do_not_fit_are_refused(row: list[list[int]]) -> None:
    with raises(RequestError, "invalid_request", naming="stop_words_list"):
        unpack(np.array(row, np.int32), "stop_words_list")


def test_a_tensor_of_another_shape_is_refused() -> None:
    with raises(RequestError, "invalid_request", naming=("stop_words_list", "[3]")):
        unpack(np.array([1, 2, 3], np.int32), "stop_words_list")


def test_too_many_words_and_too_long_ones_are_refused() -> None:
    check_words(["a"] * MAX_WORDS, "stop_words")
    with raises(RequestError, "invalid_parameter", naming=("stop_words", "257", "256")):
        check_words(["a"] * (MAX_WORDS + 1), "stop_words")
    with raises(RequestError, "invalid_parameter", naming=("stop_words", "1024")):
        check_words(["a", "b" * 1025], "stop_words")


@pytest.mark.parametrize(
    ("words", "weights", "found"),
    [
        ((), [], []),
        (("tea", "tin"), [0.5, -1.0], [("tea", 0.5), ("tin", -1.0)]),
        (("", "tea"), [0.5, 2.0], [("tea", 2.0)]),
        (("",), [], []),
        ((), [0.0], []),
    ],
)
def test_each_word_has_its_weight(words: tuple[str, ...], weights: list[float], found: list[tuple[str, float]]) -> None:
    assert weighted_words(words, weights) == found


@pytest.mark.parametrize(
    ("words", "weights", "sentence"),
    [
        ((), [0.5], ("embedding_bias_weights", "embedding_bias_words")),
        (("tea",), [], ("embedding_bias_words", "1 words", "0 weights")),
        (("", "tea"), [0.5], ("embedding_bias_words", "2 words", "1 weights")),
    ],
)
def test_a_weight_without_a_word_is_refused(words: tuple[str, ...], weights: list[float], sentence: str) -> None:
    with raises(RequestError, "invalid_parameter", naming=sentence):
        weighted_words(words, weights)
