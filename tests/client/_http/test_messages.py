from __future__ import annotations

import json
import struct
from typing import Any

import httpcore2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inflight_client._http.infer_requests import BinaryRequest
from inflight_client._http.messages import EventParser, HttpResponse, generate_body, generate_path, response_from_event
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest, Tensor

from tests.fixtures.errors import raises

_LINES = st.lists(
    st.one_of(
        st.sampled_from([b"", b"", b"data", b"data:", b"data: ", b":", b": ping", b"event: token", b"id: 5", b"retry"]),
        st.binary(max_size=12).map(lambda line: b"data: " + line.replace(b"\r", b".").replace(b"\n", b".")),
    ),
    max_size=12,
)


def _body(*inputs: tuple[str, str, tuple[int, ...], tuple[Any, ...]], **more: Any) -> Any:
    tensors = {name: Tensor(kind, shape, values) for name, kind, shape, values in inputs}
    return json.loads(generate_body(InferRequest("ensemble", more.pop("id", ""), tensors, **more)))


def _code(work: Any, *arguments: Any) -> str:
    with pytest.raises(InflightError) as caught:
        work(*arguments)
    return caught.value.code


class TestRequests:
    def test_inputs_stand_by_name_beside_id_and_parameters(self) -> None:
        found = _body(
            ("text_input", "BYTES", (1, 1), ("Tee, ☕ \n\0",)),
            ("stream", "BOOL", (1, 1), (True,)),
            id="r-7",
            parameters={"tenant": "a", "priority": 3},
        )
        assert found == {
            "text_input": "Tee, ☕ \n\0",
            "stream": True,
            "id": "r-7",
            "parameters": {"tenant": "a", "priority": 3},
        }

    def test_several_values_are_a_flat_list_and_one_is_itself(self) -> None:
        found = _body(("stop_words", "BYTES", (1, 2), ("a", "b")), ("bad_words", "BYTES", (1, 1), ("c",)))
        assert found == {"stop_words": ["a", "b"], "bad_words": "c"}

    def test_a_shape_that_triton_would_not_find_by_itself_is_refused(self) -> None:
        assert _code(_body, ("lora_config", "INT32", (1, 2, 3), (1,) * 6)) == "unsupported_input"

    def test_the_largest_seed_goes_exactly(self) -> None:
        assert _body(("seed", "UINT64", (1, 1), (2**64 - 1,)))["seed"] == 2**64 - 1

    @given(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-1e6, 1e6))
    def test_a_float_goes_as_the_tensor_would_hold_it(self, value: float) -> None:
        found = _body(("temperature", "FP32", (1, 1), (value,)))["temperature"]
        assert found == struct.unpack("<f", struct.pack("<f", value))[0]
        assert isinstance(found, float)

    @pytest.mark.parametrize(("value", "code"), [("\ud800", "invalid_text"), (float("nan"), "invalid_parameter")])
    def test_what_json_has_not_is_refused(self, value: Any, code: str) -> None:
        kind = "BYTES" if isinstance(value, str) else "FP32"
        assert _code(_body, ("some", kind, (1, 1), (value,))) == code

    def test_a_models_name_stays_one_part_of_the_path(self) -> None:
        assert generate_path("a/../b?c é") == "/v2/models/a%2F..%2Fb%3Fc%20%C3%A9/generate_stream"


class TestEvents:
    @given(_LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
    def test_any_split_gives_the_same_events(self, lines: list[bytes], end: bytes, data: st.DataObject) -> None:
        text = end.join([*lines, b""])
        at_once, in_pieces = EventParser(), EventParser()
        expected = at_once.feed(text)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
        pieces = [text[left:right] for left, right in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert [event for piece in pieces for event in in_pieces.feed(piece)] == expected
        assert in_pieces.complete == at_once.complete

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
    def test_events_are_what_stands_behind_data(self, end: bytes) -> None:
        lines = [b": ping", b"event: x", b"data: one", b"", b"data:two", b"data:  three", b"", b"", b"data: cut"]
        parser = EventParser()
        assert parser.feed(end.join(lines)) == [b"one", b"two\n three"]
        assert not parser.complete

    def test_comments_without_end_hold_nothing(self) -> None:
        parser = EventParser(max_event_bytes=100)
        assert [parser.feed(b": still here\n") for _ in range(100)] == [[]] * 100
        assert parser.feed(b"data: x\n\n") == [b"x"]
        assert parser.complete

    @pytest.mark.parametrize("piece", [b"data: " + b"x" * 30, b"data: xxxxxxxx\n", b"x"])
    def test_an_event_without_end_is_given_up(self, piece: bytes) -> None:
        parser = EventParser(max_event_bytes=100)
        assert _code(lambda: [parser.feed(piece) for _ in range(101)]) == "answer_damaged"


class TestResponses:
    def test_values_come_back_as_they_were(self) -> None:
        values = {"id": "r", "text_output": "é☕", "n": 5, "many": [1, -2], "log": -0.1, "logs": [1, 2.5], "none": []}
        response = response_from_event(json.dumps(values).encode(), "r")
        assert (response.id, response.final) == ("r", None)
        assert response.text("text_output") == "é☕"
        assert (response.integer("n"), response.integers("many")) == (5, (1, -2))
        assert (response.numbers("log"), response.numbers("logs")) == ((-0.1,), (1.0, 2.5))
        assert (response.integers("none"), response.integer("none"), response.text("none")) == ((), None, None)

    def test_what_did_not_come_is_none(self) -> None:
        response = HttpResponse({})
        found = (response.text("a"), response.integer("a"), response.integers("a"), response.numbers("a"))
        assert (*found, response.id) == (None, None, None, None, "")

    @pytest.mark.parametrize(
        ("values", "read"),
        [
            ({"a": 5}, "text"),
            ({"a": "\ud800"}, "text"),
            ({"a": [None]}, "text"),
            ({"a": "5"}, "integer"),
            ({"a": True}, "integer"),
            ({"a": 1.5}, "integers"),
            ({"a": {"b": 1}}, "numbers"),
            ({"a": [1.5, "x"]}, "numbers"),
        ],
    )
    def test_a_value_of_another_type_is_damage(self, values: dict[str, Any], read: str) -> None:
        assert _code(getattr(HttpResponse(values), read), "a") == "answer_damaged"

    @pytest.mark.parametrize(
        "data", [b"", b"{", b"[]", b"5", b'"tea"', b"\xff\xfe", b'{"text_output": "\xff"}', b"[" * 100_000, b"<html>"]
    )
    def test_what_is_no_json_object_is_damage(self, data: bytes) -> None:
        assert _code(response_from_event, data, "") == "answer_damaged"

    def test_another_requests_answer_is_damage(self) -> None:
        assert _code(response_from_event, b'{"id": "r-1", "text_output": "a"}', "r-2") == "answer_damaged"
        assert response_from_event(b'{"text_output": "a"}', "r-2").id == ""  # older servers give no id back

    def test_an_error_has_the_servers_words_and_code(self) -> None:
        with raises(InflightError, "invalid_parameter") as caught:
            response_from_event(b'{"error": "max_tokens is 0; it must be 1 or more [invalid_parameter]"}', "r")
        assert str(caught.value) == "max_tokens is 0; it must be 1 or more"


class TestBinaryTensors:
    REQUEST = InferRequest(
        "embedding", "r-1", {"text_input": Tensor("BYTES", (2, 1), ("お茶", ""))}, ("embedding",), task="embed"
    )

    def test_the_json_is_before_the_bytes(self) -> None:
        sent = BinaryRequest(self.REQUEST)
        length = int(sent.headers["inference-header-content-length"])
        head = json.loads(sent.body[:length])
        assert sent.path == "/v2/models/embedding/infer"
        assert sent.body[length:] == b"\6\0\0\0" + "お茶".encode() + b"\0\0\0\0"
        assert head["inputs"][0]["parameters"] == {"binary_data_size": 14}
        assert head["outputs"] == [{"name": "embedding", "parameters": {"binary_data": True}}]

    def test_outputs_are_read_in_their_order(self) -> None:
        found = self._answer({"embedding": ("FP32", [1, 2], 8), "error": ("BYTES", [1, 1], 5)}, bytes(8) + b"\1\0\0\0x")
        assert found.array("embedding").tolist() == [[0, 0]]
        assert found.texts("error") == ("x",)
        assert found.id == "r-1"

    @pytest.mark.parametrize(
        ("outputs", "raw"),
        [
            ({"embedding": ("FP32", [1, 2], 8)}, bytes(7)),
            ({"embedding": ("FP32", [1, 2], "8")}, bytes(8)),
            ({"embedding": ("FP32", [1, 3], 8)}, bytes(8)),
            ({"embedding": ("FP32", None, 8)}, bytes(8)),
        ],
    )
    def test_other_bytes_than_the_json_tells_of_are_damaged(self, outputs: Any, raw: bytes) -> None:
        assert _code(self._answer, outputs, raw) == "answer_damaged"

    def test_an_answer_to_another_request_is_damaged(self) -> None:
        assert _code(self._answer, {}, b"", "r-2") == "answer_damaged"

    def _answer(self, outputs: dict[str, Any], raw: bytes, id: str = "r-1") -> Any:
        names = ("datatype", "shape", "parameters")
        listed = [
            {"name": name, **dict(zip(names, (kind, shape, {"binary_data_size": size}), strict=True))}
            for name, (kind, shape, size) in outputs.items()
        ]
        head = json.dumps({"id": id, "outputs": listed}).encode()
        sent = BinaryRequest(self.REQUEST)
        sent.begin(httpcore2.Response(200, headers={"Inference-Header-Content-Length": str(len(head))}), "here")
        return sent.parse_event(head + raw)
