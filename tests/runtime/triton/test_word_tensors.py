"""Words as token ids in upstream's tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.runtime.messages import RequestError
from inflight.runtime.triton.word_tensors import MAX_WORDS, check_words, pack, unpack, weighted_words

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
    with pytest.raises(RequestError, match="stop_words_list has a word that ends at") as raised:
        unpack(np.array(row, np.int32), "stop_words_list")
    assert raised.value.code == "invalid_request"


def test_a_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(RequestError, match=r"stop_words_list has the shape \[3\]; it must be \[2, length\]"):
        unpack(np.array([1, 2, 3], np.int32), "stop_words_list")


def test_too_many_words_and_too_long_ones_are_refused() -> None:
    check_words(["a"] * MAX_WORDS, "stop_words")
    with pytest.raises(RequestError, match="stop_words holds 257 words; at most 256 are taken"):
        check_words(["a"] * (MAX_WORDS + 1), "stop_words")
    with pytest.raises(RequestError, match="stop_words holds a word of more than 1024"):
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
        ((), [0.5], "^embedding_bias_weights goes with embedding_bias_words; send both$"),
        (("tea",), [], "embedding_bias_words holds 1 words and embedding_bias_weights 0 weights"),
        (("", "tea"), [0.5], "embedding_bias_words holds 2 words and embedding_bias_weights 1 weights"),
    ],
)
def test_a_weight_without_a_word_is_refused(words: tuple[str, ...], weights: list[float], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence) as raised:
        weighted_words(words, weights)
    assert raised.value.code == "invalid_parameter"
