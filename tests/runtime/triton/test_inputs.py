"""How inputs are read: by row, or for a whole request; and which names beside them are taken."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from inflight.common.request_error import RequestError
from inflight.runtime.triton.bounded_strings import MAX_STRINGS, decode_strings
from inflight.runtime.triton.inputs import check_parameter_names, parameters_json
from tests.fixtures.errors import raises
from tests.runtime.triton.request_inputs import inputs_of


@pytest.mark.parametrize("values", [[True], [[True]], [True, True], [[True], [True], [True]]])
def test_a_value_that_all_prompts_share_holds_for_the_request(values: Any) -> None:
    assert inputs_of(streaming=values).common("streaming") is True


@pytest.mark.parametrize("values", [[True, False], [[False], [True]], [[False], [False], [True]]])
def test_a_value_in_which_prompts_differ_is_refused(values: Any) -> None:
    with raises(RequestError, "invalid_request", naming="streaming"):
        inputs_of(streaming=values).common("streaming")


def test_the_refusal_names_the_input_as_its_sender_does() -> None:
    with raises(RequestError, "invalid_request", naming="max_tokens"):
        inputs_of(request_output_len=[[1], [2]], stream_key=[[1], [2]]).common("request_output_len")


def test_what_was_not_sent_has_its_default() -> None:
    assert inputs_of().common("streaming", default=False) is False
    assert inputs_of().common("streaming") is None


def test_several_values_for_one_prompt_are_refused() -> None:
    with raises(RequestError, "invalid_request", naming=("streaming", "2")):
        inputs_of(streaming=[[True, True]]).common("streaming")


def test_empty_words_can_be_read_with_their_places_or_left_out() -> None:
    inputs = inputs_of(words=[[b"", b"tea"], [b"tin", b""]])
    assert inputs.all_texts("words", 0) == ("", "tea")
    assert inputs.texts("words", 0) == ("tea",)
    assert inputs.texts("words", 1) == ("tin",)
    assert inputs.texts("others") == inputs.all_texts("others") == ()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"id": "x", "priority": 3, "timeout": 5, "sequence_start": True},
        {"temprature": "", "top_q": 0, "b": False, "c": None},
        {"request_type": "context_and_generation"},
        {"inflight_chunks": "tensorrt_llm_bls"},
    ],
)
def test_names_that_ask_for_nothing_else_are_taken(given: dict[str, Any]) -> None:
    check_parameter_names(given, allowed=("inflight_chunks",))


@pytest.mark.parametrize("given", [{"temprature": 0.5}, {"top_p": 0.5, "id": "x"}, {"inflight_chunks": "a"}])
def test_a_name_that_no_input_has_is_refused(given: dict[str, Any]) -> None:
    with raises(RequestError, "invalid_request", naming=next(iter(given))):
        check_parameter_names(given)


def test_a_name_near_that_of_an_input_is_suggested() -> None:
    with raises(RequestError, "invalid_request", naming="temperature"):
        check_parameter_names({"temprature": 0.5}, inputs=("top_p", "temperature"))


@pytest.mark.parametrize("value", ["context_only", "generation_only", "3"])
def test_half_the_work_of_a_request_is_refused(value: Any) -> None:
    with raises(RequestError, "unsupported_input", naming=("request_type", repr(value))):
        check_parameter_names({"request_type": value})


def encoded(*texts: bytes) -> Any:
    return np.frombuffer(b"".join(len(text).to_bytes(4, "little") + text for text in texts), np.uint8)


def test_strings_are_read_as_triton_has_them() -> None:
    texts = [b"", "日本".encode(), b"a" * 70_000]
    assert decode_strings(encoded(*texts)).reshape([3, 1]).tolist() == [[text] for text in texts]
    assert decode_strings(encoded()).reshape([0]).tolist() == []


def test_a_tensor_of_too_many_strings_is_not_read_and_refused() -> None:
    """Beyond them comes what can't be read at all; Triton gives the array its shape, and hands it to the model."""
    whole = decode_strings(encoded(*[b""] * MAX_STRINGS)).reshape([64, MAX_STRINGS // 64])
    assert inputs_of(words=whole).all_texts("words", 63) == ("",) * (MAX_STRINGS // 64)
    unread = decode_strings(np.append(encoded(*[b""] * MAX_STRINGS), np.full(9, 255, np.uint8))).reshape([1, 10**9])
    with raises(RequestError, "invalid_parameter"):
        inputs_of(words=unread)


class _Beside(NamedTuple):
    said: str

    def parameters(self) -> str:
        return self.said


def test_parameters_beside_the_tensors_are_bounded() -> None:
    said = '{"tenant": "' + "a" * 65_522 + '"}'
    assert parameters_json(_Beside(said)) == said
    with raises(RequestError, "invalid_parameter"):
        parameters_json(_Beside(said + " "))
