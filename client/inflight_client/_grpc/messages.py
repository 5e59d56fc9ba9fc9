"""KServe v2 over gRPC: requests as protobuf messages, and responses that are decoded on access."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2

from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.tensor_bytes import CODES, bytes_to_array, bytes_to_texts, damaged_output, tensor_to_bytes
from inflight_client.transport import InferRequest, ModelMetadata, ServerMetadata

if TYPE_CHECKING:
    from inflight_client.transport import Array


def infer_request(request: InferRequest) -> Any:
    """Return the ModelInferRequest. Raises InflightError for values that do not fit their tensor."""
    message = service_pb2.ModelInferRequest(model_name=request.model, id=request.id)
    for name, tensor in request.inputs.items():
        message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor_to_bytes(name, tensor))
    for name in request.outputs:
        message.outputs.add(name=name)
    for name, value in request.parameters.items():
        _set_parameter(message.parameters[name], name, value)
    return message


def _set_parameter(parameter: Any, name: str, value: str | int | bool) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    elif -(2**63) <= value < 2**63:
        parameter.int64_param = value
    else:
        raise InflightError(f"the parameter {name} is {value}; it must fit 64 bits", "invalid_parameter")


class GrpcInferResponse:
    """A ModelInferResponse; see transport.InferResponse. One is created for every token, so it must be cheap."""

    __slots__ = ("_message", "_places")

    def __init__(self, message: Any) -> None:
        self._message = message
        self._places: dict[str, int] | None = None

    @property
    def id(self) -> str:
        name: str = self._message.id
        return name

    @property
    def final(self) -> bool | None:
        """Triton's `triton_final_response`, which every response of a decoupled model has."""
        parameter = self._message.parameters.get("triton_final_response")
        return None if parameter is None else bool(parameter.bool_param)

    def text(self, name: str) -> str | None:
        texts = self.texts(name, 1)
        return texts[0] if texts else None

    def texts(self, name: str, limit: int | None = None) -> tuple[str, ...] | None:
        raw = self._raw(name)
        return None if raw is None else bytes_to_texts(name, raw, limit)

    def array(self, name: str) -> Array | None:
        raw = self._raw(name)
        if raw is None:
            return None
        output = self._message.outputs[(self._places or {})[name]]
        return bytes_to_array(name, output.datatype, output.shape, raw)

    def integer(self, name: str) -> int | None:
        values = self.integers(name)
        return values[0] if values else None

    def integers(self, name: str) -> tuple[int, ...] | None:
        return self._numbers(name, "bhiqBHIQ?")

    def numbers(self, name: str) -> tuple[float, ...] | None:
        return self._numbers(name, "efd")

    def _raw(self, name: str) -> bytes | None:
        """Return the bytes of an output; None if it is missing."""
        places = self._places
        if places is None:
            places = self._places = {output.name: place for place, output in enumerate(self._message.outputs)}
        place = places.get(name)
        if place is None:
            return None
        try:
            raw: bytes = self._message.raw_output_contents[place]
        except IndexError:
            raise damaged_output(name, "no contents") from None
        return raw

    def _numbers(self, name: str, codes: str) -> tuple[Any, ...] | None:
        raw = self._raw(name)
        if raw is None:
            return None
        datatype = self._message.outputs[(self._places or {})[name]].datatype
        code = CODES.get(datatype, "")
        if not code or code not in codes:
            raise damaged_output(name, f"the type {datatype or 'nothing'}")
        count, rest = divmod(len(raw), struct.calcsize(code))
        if rest:
            raise damaged_output(name, f"{len(raw)} bytes of {datatype}")
        return struct.unpack(f"<{count}{code}", raw)


def model_metadata(message: Any) -> ModelMetadata:
    """Of a ModelMetadataResponse."""
    inputs, outputs = (
        {tensor.name: (str(tensor.datatype), tuple(tensor.shape)) for tensor in tensors}
        for tensors in (message.inputs, message.outputs)
    )
    return ModelMetadata(message.name, inputs, outputs, tuple(message.versions))


def server_metadata(message: Any) -> ServerMetadata:
    """Of a ServerMetadataResponse."""
    return ServerMetadata(message.name, message.version)


def models(message: Any) -> list[Model]:
    """Of a RepositoryIndexResponse."""
    return [Model(model.name, model.version, model.state, model.reason) for model in message.models]


def model_config(message: Any) -> Mapping[str, Any]:
    """Return a ModelConfigResponse in the form of the HTTP endpoint's JSON."""
    return _plain(message.config)


def _plain(message: Any) -> dict[str, Any]:
    return {
        field.name: _field(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _field(field: Any, value: Any) -> Any:
    if field.message_type and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        return {str(key): _single(kind, value[key]) for key in value}
    return [_single(field, each) for each in value] if field.is_repeated else _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.message_type:
        return _plain(value)
    if field.enum_type:
        return field.enum_type.values_by_number[value].name
    return value
