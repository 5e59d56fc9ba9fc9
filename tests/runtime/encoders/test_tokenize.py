"""Texts as token ids: cut, refused, or whole."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.tokenize import EncoderTokenizer, PlainText, TokenizedText
from tests.fixtures.errors import raises
from tests.runtime.encoders.word_tokenizer import VOCABULARY, word_tokenizer

LIMIT = 16
PLAIN = word_tokenizer()
TOKENIZER = EncoderTokenizer(PLAIN, LIMIT, len(VOCABULARY), with_types=True)


def words(count: int) -> str:
    return " ".join(VOCABULARY[4 + number % 20] for number in range(count))


def tokenized(text: PlainText) -> TokenizedText:
    (found,) = TOKENIZER.tokenize([text])
    assert isinstance(found, TokenizedText), found
    return found


@pytest.mark.parametrize("count", [0, 1, LIMIT - 2])
def test_a_text_up_to_the_limit_is_whole(count: int) -> None:
    found = tokenized(PlainText(words(count), truncate=False))
    assert found.input.token_ids.tolist() == PLAIN.encode(words(count)).ids
    assert not found.truncated


@pytest.mark.parametrize("count", [LIMIT - 1, 100, 100_000])
def test_a_longer_text_is_refused_or_cut_before_its_last_special_token(count: int) -> None:
    (refused,) = TOKENIZER.tokenize([PlainText(words(count), truncate=False)])
    assert isinstance(refused, RequestError)
    assert refused.code == "prompt_too_long"
    found = tokenized(PlainText(words(count), truncate=True))
    whole = PLAIN.encode(words(LIMIT)).ids
    assert found.input.token_ids.tolist() == [*whole[: LIMIT - 1], whole[-1]]
    assert found.truncated


def test_a_text_that_is_cut_may_begin_with_many_spaces() -> None:
    text = " " * 5000 + words(LIMIT - 2)
    assert not tokenized(PlainText(text, truncate=False)).truncated
    assert tokenized(PlainText(text + " " + words(50), truncate=True)).truncated


def test_megabytes_of_spaces_are_refused() -> None:
    (refused,) = TOKENIZER.tokenize([PlainText(" " * (1 << 22) + words(1), truncate=True)])
    assert isinstance(refused, RequestError)
    assert refused.code == "prompt_too_long"


def test_of_a_pair_the_document_is_cut_and_the_query_is_whole() -> None:
    query, document = words(4), words(30)
    found = tokenized(PlainText(query, truncate=True, document=document))
    whole = PLAIN.encode(query, words(LIMIT - 3 - 4))
    assert found.input.token_ids.tolist() == whole.ids
    assert found.input.type_ids.tolist() == whole.type_ids
    assert found.truncated
    for text in (PlainText(query, False, document), PlainText(words(LIMIT), True, "")):
        (refused,) = TOKENIZER.tokenize([text])
        assert isinstance(refused, RequestError)
        assert refused.code == "prompt_too_long"


def test_a_query_leaves_room_for_a_document_s_token() -> None:
    longest = words(LIMIT - 3 - 1)
    TOKENIZER.check_query(longest)
    found = TOKENIZER.tokenize([PlainText(longest, True, document) for document in (words(1), words(30))])
    assert [len(each.input.token_ids) for each in found if isinstance(each, TokenizedText)] == [LIMIT, LIMIT]
    for query in (words(LIMIT - 3), words(5000), " " * 5000):  # spaces are tokenized again with each document
        with raises(RequestError, "prompt_too_long", naming="query") as refused:
            TOKENIZER.check_query(query)
        assert "truncate" not in str(refused.value)


def test_texts_of_a_call_keep_their_order_beside_refused_ones() -> None:
    found = TOKENIZER.tokenize([PlainText(words(count), False) for count in (1, 400, 3, 90, 2)])
    sizes = [len(one.input.token_ids) if isinstance(one, TokenizedText) else None for one in found]
    assert sizes == [3, None, 5, None, 4]


@pytest.mark.parametrize(
    ("ids", "truncate", "code"),
    [
        ([], False, "empty_prompt"),
        ([5, -1], False, "invalid_token_ids"),
        ([5, len(VOCABULARY)], True, "invalid_token_ids"),
        ([5] * (LIMIT + 1), False, "prompt_too_long"),
    ],
)
def test_token_ids_are_checked(ids: list[int], truncate: bool, code: str) -> None:
    with raises(RequestError, code):
        TOKENIZER.check_ids(np.array(ids, np.int32), truncate)


def test_token_ids_are_used_as_they_are() -> None:
    assert TOKENIZER.check_ids(np.array([7] * LIMIT, np.int32), False).input.token_ids.tolist() == [7] * LIMIT
    cut = TOKENIZER.check_ids(np.arange(LIMIT + 4, dtype=np.int32), True)
    assert cut.input.token_ids.tolist() == list(range(LIMIT))
    assert cut.truncated


@pytest.mark.parametrize("document", [None, "w1 w2"])
def test_a_text_with_a_token_that_the_model_lacks_is_refused_alone(document: str | None) -> None:
    smaller = EncoderTokenizer(PLAIN, LIMIT, len(VOCABULARY) - 1, with_types=False)
    texts = [PlainText(text, truncate=True, document=document) for text in ("w1", f"w1 {VOCABULARY[-1]}", "w2")]
    first, refused, last = smaller.tokenize(texts)
    assert isinstance(refused, RequestError)
    assert refused.code == "invalid_token_ids"
    assert isinstance(first, TokenizedText)
    assert isinstance(last, TokenizedText)
