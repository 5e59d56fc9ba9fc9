"""Tensors become the messages that Triton expects, and responses are read without a byte too many or too few."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from inflight_client import InflightError
from inflight_client._grpc.messages import GrpcInferResponse, infer_request, model_config, models
from inflight_client.results import Model
from inflight_client.transport import InferRequest, Tensor
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.fixtures.errors import raises


def bytes_of(*texts: str) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def response(**outputs: tuple[str, bytes]) -> GrpcInferResponse:
    message = service_pb2.ModelInferResponse(id="7")
    for name, (datatype, raw) in outputs.items():
        message.outputs.add(name=name, datatype=datatype, shape=[1])
        message.raw_output_contents.append(raw)
    return GrpcInferResponse(message)


@pytest.mark.parametrize(
    ("tensor", "raw"),
    [
        (Tensor("BYTES", (1, 2), ("お茶", "")), bytes_of("お茶", "")),
        (Tensor("INT32", (1, 2), (-1, 7)), struct.pack("<ii", -1, 7)),
        (Tensor("UINT64", (1, 1), (2**64 - 1,)), b"\xff" * 8),
        (Tensor("INT64", (1, 1), (-2,)), struct.pack("<q", -2)),
        (Tensor("FP32", (1, 1), (0.25,)), struct.pack("<f", 0.25)),
        (Tensor("BOOL", (1, 2), (True, False)), b"\1\0"),
    ],
)
def test_a_tensor_has_tritons_type_shape_and_bytes(tensor: Tensor, raw: bytes) -> None:
    message = infer_request(InferRequest("ensemble", "7", {"it": tensor}, outputs=("text_output",)))
    assert (message.model_name, message.id) == ("ensemble", "7")
    [sent] = message.inputs
    assert (sent.name, sent.datatype, tuple(sent.shape)) == ("it", tensor.datatype, tensor.shape)
    assert list(message.raw_input_contents) == [raw]
    assert [output.name for output in message.outputs] == ["text_output"]


def test_parameters_keep_their_types() -> None:
    message = infer_request(InferRequest("m", "", {}, parameters={"yes": True, "count": -3, "tenant": "tea"}))
    assert message.parameters["yes"].bool_param is True
    assert message.parameters["count"].int64_param == -3
    assert message.parameters["tenant"].string_param == "tea"
    assert len(message.parameters) == 3


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (Tensor("BYTES", (1,), ("tea \ud83d",)), "invalid_text"),
        (Tensor("INT32", (1,), (2**31,)), "invalid_parameter"),
        (Tensor("FP32", (1,), (1e300,)), "invalid_parameter"),
        (Tensor("INT32", (1,), ("7",)), "invalid_parameter"),
    ],
)
def test_what_a_tensor_cannot_hold_is_refused_by_its_name(tensor: Tensor, code: str) -> None:
    with raises(InflightError, code, naming="number_of_cups"):
        infer_request(InferRequest("m", "", {"number_of_cups": tensor}))


def test_a_parameter_has_64_bits() -> None:
    with raises(InflightError, "invalid_parameter", naming="count"):
        infer_request(InferRequest("m", "", {}, parameters={"count": 2**63}))


def test_outputs_are_read_by_name_and_type() -> None:
    it = response(
        text_output=("BYTES", bytes_of("お茶", "more")),
        num_output_tokens=("INT32", struct.pack("<i", -5)),
        token_ids=("INT32", struct.pack("<3i", 1, 2, 3)),
        arrival=("INT64", struct.pack("<q", 2**40)),
        log_probs=("FP32", struct.pack("<2f", -0.5, -0.25)),
    )
    assert it.id == "7"
    assert it.text("text_output") == "お茶"
    assert it.integer("num_output_tokens") == -5
    assert it.integers("token_ids") == (1, 2, 3)
    assert it.integer("arrival") == 2**40
    assert it.numbers("log_probs") == (-0.5, -0.25)


def test_what_did_not_come_is_none_and_what_is_empty_is_empty() -> None:
    it = response(text_output=("BYTES", b""), token_ids=("INT32", b""))
    assert (it.text("nobody"), it.integer("nobody"), it.integers("nobody"), it.numbers("nobody")) == (None,) * 4
    assert it.text("text_output") is None
    assert (it.integer("token_ids"), it.integers("token_ids")) == (None, ())


@pytest.mark.parametrize("final", [None, False, True])
def test_triton_says_which_response_is_the_last(final: bool | None) -> None:
    message = service_pb2.ModelInferResponse()
    if final is not None:
        message.parameters["triton_final_response"].bool_param = final
    assert GrpcInferResponse(message).final is final


@pytest.mark.parametrize(
    ("method", "datatype", "raw"),
    [
        ("text", "BYTES", struct.pack("<I", 9) + b"short"),
        ("text", "BYTES", struct.pack("<I", 2) + b"\xff\xfe"),
        ("integers", "INT32", b"\0\0\0"),
        ("integers", "FP32", b"\0\0\0\0"),
        ("numbers", "INT32", b"\0\0\0\0"),
        ("integers", "", b"\0\0\0\0"),
    ],
)
def test_what_cannot_be_read_is_a_damaged_answer(method: str, datatype: str, raw: bytes) -> None:
    with raises(InflightError, "answer_damaged", naming="it"):
        getattr(response(it=(datatype, raw)), method)("it")


def test_an_output_without_contents_is_a_damaged_answer() -> None:
    message = service_pb2.ModelInferResponse()
    message.outputs.add(name="it", datatype="BYTES", shape=[1])
    with raises(InflightError, "answer_damaged", naming="it"):
        GrpcInferResponse(message).text("it")


def test_a_configuration_reads_as_tritons_json() -> None:
    message = service_pb2.ModelConfigResponse()
    config: Any = message.config
    config.parameters["inflight_version"].string_value = "1.2"
    config.input.add(name="it", data_type=model_config_pb2.TYPE_INT64, dims=[-1])
    config.model_transaction_policy.decoupled = True
    read = model_config(message)
    assert read["parameters"] == {"inflight_version": {"string_value": "1.2"}}
    assert (read["input"][0]["data_type"], read["input"][0]["dims"]) == ("TYPE_INT64", [-1])
    assert read["model_transaction_policy"] == {"decoupled": True}
    assert read["max_batch_size"] == 0
    assert "ensemble_scheduling" not in read


def test_the_repository_says_which_models_are_ready() -> None:
    message = service_pb2.RepositoryIndexResponse()
    message.models.add(name="ensemble", version="1", state="READY")
    message.models.add(name="old", version="2", state="UNAVAILABLE", reason="unloaded")
    assert models(message) == [Model("ensemble", "1", "READY"), Model("old", "2", "UNAVAILABLE", "unloaded")]
