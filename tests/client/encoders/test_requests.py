"""Texts in requests of bounded size, and answers that do not fit their request."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from inflight_client import InflightError
from inflight_client.encoder_call import EncoderOptions, EncoderRequest
from inflight_client.encoder_texts import MAX_CHARACTERS, MAX_TEXTS, Splitter, join
from inflight_client.errors import AnswerDamaged, ServerGone
from inflight_client.tensor_bytes import bytes_to_array, bytes_to_texts

from tests.fixtures.errors import raises

EMBED = EncoderOptions("embed", "embedding")


class Response:
    """Arrays and texts by their names, as a transport gives them."""

    def __init__(self, **outputs: Any) -> None:
        self._outputs = outputs

    def array(self, name: str) -> Any:
        return self._outputs.get(name)

    def texts(self, name: str, limit: int | None = None) -> Any:
        found = self._outputs.get(name)
        return None if found is None else tuple(found[:limit])

    def text(self, name: str) -> None:
        return None


def response(count: int, **changed: Any) -> Any:
    outputs: dict[str, Any] = {
        "embedding": np.zeros((count, 4), np.float32),
        "num_input_tokens": np.ones((count, 1), np.int32),
        "truncated": np.zeros((count, 1), bool),
        "error": ("",) * count,
    }
    return Response(**outputs | changed)


def requests(texts: list[Any], options: EncoderOptions = EMBED) -> list[EncoderRequest]:
    return list(Splitter(options).requests(texts))


_IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3000)


@example([[1] * 16_000, *[[1]] * 255])
@given(st.lists(st.integers(0, 90_000).map("x".__mul__) | _IDS, max_size=30))
def test_requests_have_bounds_and_all_texts_in_order(texts: list[Any]) -> None:
    places: list[int] = []
    for request in requests(texts):
        inputs = request.build().inputs
        assert len({"text_input", "input_ids"} & inputs.keys()) == 1
        sizes = (
            [len(str(text)) for text in inputs["text_input"].values]
            if "text_input" in inputs
            else [4 * inputs["input_ids"].shape[1]] * len(inputs["input_lengths"].values)  # with their padding
        )
        assert len(sizes) <= MAX_TEXTS["embed"]
        assert len(sizes) == 1 or sum(sizes) <= MAX_CHARACTERS
        request.add(response(len(sizes)))
        places += request.answers[0].indices
    assert sorted(places) == list(range(len(texts)))


@pytest.mark.parametrize(("task", "count"), [("embed", 256), ("classify", 256), ("rerank", 1024)])
def test_a_full_request_has_the_models_limit(task: Any, count: int) -> None:
    options = EncoderOptions(task, task, query="?" if task == "rerank" else None)
    found = [request.build().inputs for request in requests(["tea"] * (count + 1), options)]
    name = "documents" if task == "rerank" else "text_input"
    assert [len(inputs[name].values) for inputs in found] == [count, 1]
    assert found[0][name].shape == ((count,) if task == "rerank" else (count, 1))


def test_token_ids_are_padded_to_the_longest_of_their_request() -> None:
    [request] = requests([[1, 2, 3], [4]])
    inputs = request.build().inputs
    assert inputs["input_ids"] == ("INT32", (2, 3), (1, 2, 3, 4, 0, 0))
    assert inputs["input_lengths"] == ("INT32", (2, 1), (3, 1))


@pytest.mark.parametrize(("left", "sent"), [(None, None), (0.0, 1), (1.2341, 1235), (1e9, 2**31 - 1)])
@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_the_server_is_told_how_long_the_client_waits(task: Any, left: float | None, sent: int | None) -> None:
    [request] = requests(["tea", "milk"], EncoderOptions(task, task, query="?" if task == "rerank" else None))
    found = request.build(left).inputs.get("deadline_ms")
    assert (found and set(found.values)) == (sent and {sent})


@pytest.mark.parametrize(
    "changed",
    [
        {"embedding": None},
        {"embedding": np.zeros((3, 4), np.float32)},
        {"embedding": np.zeros((2, 4), np.float64)},
        {"embedding": np.zeros((2, 2, 2), np.float32)},
        {"num_input_tokens": np.ones((1, 1), np.int32)},
        {"truncated": None},
        {"error": ("",)},
    ],
)
def test_an_answer_that_does_not_fit_is_damaged(changed: dict[str, Any]) -> None:
    [request] = requests(["a", "b"])
    request.build()
    with raises(AnswerDamaged, "answer_damaged"):
        request.add(response(2, **changed))


def test_one_request_has_one_response() -> None:
    [request] = requests(["a"])
    request.build()
    with raises(ServerGone, "server_gone"):
        request.check()
    request.add(response(1))
    with raises(AnswerDamaged, "answer_damaged"):
        request.add(response(1))


def test_a_retry_sends_only_what_may_succeed() -> None:
    [request] = requests(["a", "b", "c"])
    request.build()
    request.add(response(3, error=("", "busy [overloaded]", "too long [prompt_too_long]")))
    with raises(InflightError, "overloaded", naming="texts[1]"):
        request.check()
    assert request.build().inputs["text_input"].values == ("b",)
    request.add(response(1))
    request.check()
    with raises(InflightError, "prompt_too_long", naming="texts[2]"):
        request.raise_first()


def test_answers_of_two_models_are_not_joined() -> None:
    splitter = Splitter(EMBED)
    both = list(splitter.requests(["a"] * 257))
    for size, request in zip((4, 5), both, strict=True):
        count = len(request.build().inputs["text_input"].values)
        request.add(response(count, embedding=np.zeros((count, size), np.float32)))
    with raises(AnswerDamaged, "answer_damaged"):
        join(splitter, EMBED, both)


@given(st.lists(st.text()), st.integers(0, 5))
def test_strings_are_read_from_their_bytes(texts: list[str], limit: int) -> None:
    raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    assert bytes_to_texts("it", raw) == tuple(texts)
    assert bytes_to_texts("it", raw, limit) == tuple(texts[:limit])


@pytest.mark.parametrize("raw", [b"\1\0\0", b"\4\0\0\0abc", b"\1\0\0\0\xff"])
def test_strings_that_are_cut_or_not_text_are_damaged(raw: bytes) -> None:
    with raises(AnswerDamaged, "answer_damaged", naming="it"):
        bytes_to_texts("it", raw)


@pytest.mark.parametrize(("datatype", "shape"), [("FP32", (3,)), ("FP32", (1, 1)), ("BF16", (4,)), ("", (2,))])
def test_arrays_that_do_not_fit_their_shape_are_damaged(datatype: str, shape: tuple[int, ...]) -> None:
    with raises(AnswerDamaged, "answer_damaged", naming="it"):
        bytes_to_array("it", datatype, shape, bytes(8))


def joined(task: Any, texts: list[str], **outputs: Any) -> Any:
    options = EncoderOptions(task, task, query="?" if task == "rerank" else None)
    splitter = Splitter(options)
    [request] = splitter.requests(texts)
    request.build()
    shape = (len(texts),) if task == "rerank" else (len(texts), 1)
    common = {"num_input_tokens": np.ones(shape, np.int32), "truncated": np.zeros(shape, bool)}
    request.add(response(len(texts), **common, **outputs))
    return join(splitter, options, [request])


def test_documents_with_the_same_rounded_score_are_ordered_by_logits() -> None:
    logits, scores = np.array([25, 49, -3, 30], np.float32), np.array([1, 1, 0.05, 1], np.float32)
    found = joined("rerank", ["a", "b", "c", "d"], scores=scores, logits=logits)
    assert [document.index for document in found] == [1, 3, 0, 2]
    assert found.scores == tuple(scores.tolist())


def test_the_best_of_labels_with_the_same_rounded_score_has_the_highest_logit() -> None:
    logits, scores = np.array([[20, 40, -5]], np.float32), np.array([[1, 1, 0.01]], np.float32)
    (found,) = joined("classify", ["a"], scores=scores, logits=logits, labels=("x", "y", "z"))
    assert (found.label, found.score) == ("y", 1)
