"""The stand-in over gRPC: KServe v2's GRPCInferenceService as Triton speaks it."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.standins.kserve.requests import InputTensor, ModelRequest, RefusedError
from tests.standins.kserve.responses import ModelResponse, OutputTensor

if TYPE_CHECKING:
    from tests.standins.kserve.server import StandInServer

_CODES = {"BOOL": "?", "INT32": "i", "INT64": "q", "UINT64": "Q", "FP32": "f"}
_STATUS = {
    "INVALID_ARG": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "UNSUPPORTED": grpc.StatusCode.UNIMPLEMENTED,
    "CANCELLED": grpc.StatusCode.CANCELLED,
    "RESTRICTED": grpc.StatusCode.UNAVAILABLE,
}
_RESTRICTED = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
_CALLS = 80


class GrpcFrontend:
    """Listens until it is closed."""

    def __init__(self, server: StandInServer) -> None:
        self._server = grpc.server(ThreadPoolExecutor(_CALLS, "stand-in"))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(server), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(grace=None).wait()


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, server: StandInServer) -> None:
        self._server = server

    def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802, gRPC's names from here on
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=request.name in self._server.models)

    def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return _answered(context, self._metadata, request.name)

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return _answered(context, self._config, request.name)

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        return _answered(context, self._index)

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        return _answered(context, self._infer_once, request, context)

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        gone = threading.Event()
        context.add_callback(gone.set)
        for message in requests:
            try:
                request = self._read(message, gone, context)
                for response in self._server.infer(request):
                    if response.outputs_sent:
                        yield service_pb2.ModelStreamInferResponse(infer_response=_message(request, response))
            except RefusedError as error:
                failed = service_pb2.ModelStreamInferResponse(error_message=str(error))
                failed.infer_response.id = message.id
                yield failed

    def _metadata(self, name: str) -> Any:
        model = self._server.model(name)
        message = service_pb2.ModelMetadataResponse(name=name, versions=["1"], platform=model.platform)
        for tensors, field in ((model.inputs, message.inputs), (model.outputs, message.outputs)):
            for key, tensor in tensors.items():
                field.add(name=key, datatype=tensor.datatype, shape=model.shape(tensor))
        return message

    def _config(self, name: str) -> Any:
        self._server.check_open("model-config")
        return json_format.ParseDict({"config": self._server.model(name).config()}, service_pb2.ModelConfigResponse())

    def _index(self) -> Any:
        self._server.check_open("model-repository")
        message = service_pb2.RepositoryIndexResponse()
        for name in self._server.models:
            message.models.add(name=name, version="1", state="READY")
        return message

    def _infer_once(self, message: Any, context: Any) -> Any:
        gone = threading.Event()
        context.add_callback(gone.set)
        request = self._read(message, gone, context)
        if request.model.decoupled:
            raise RefusedError("ModelInfer RPC doesn't support models with decoupled transaction policy", "UNSUPPORTED")
        (response,) = self._server.infer(request)
        return _message(request, response)

    def _read(self, message: Any, gone: threading.Event, context: Any) -> ModelRequest:
        inputs = {
            given.name: InputTensor(given.datatype, tuple(given.shape), _values(given.datatype, raw))
            for given, raw in zip(message.inputs, message.raw_input_contents, strict=True)
        }
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()
        }
        headers = {str(key): str(value) for key, value in context.invocation_metadata()}
        outputs = tuple(output.name for output in message.outputs)
        model = self._server.model(message.model_name)
        return ModelRequest(model, message.id, inputs, outputs, parameters, headers, gone)


def _answered(context: Any, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except RefusedError as error:
        context.abort(_STATUS[error.code], _RESTRICTED if error.code == "RESTRICTED" else str(error))


def _values(datatype: str, raw: bytes) -> tuple[Any, ...]:
    if datatype != "BYTES":
        code = _CODES.get(datatype)
        if code is None:
            raise RefusedError(f"the stand-in reads no tensors of type {datatype}")
        return struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw)
    values = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        values.append(raw[4:end].decode())
        raw = raw[end:]
    return tuple(values)


def _message(request: ModelRequest, response: ModelResponse) -> Any:
    message = service_pb2.ModelInferResponse(model_name=request.model.name, model_version="1", id=request.id)
    message.parameters["triton_final_response"].bool_param = response.final
    for name, output in response.outputs.items():
        if not request.outputs or name in request.outputs:
            message.outputs.add(name=name, datatype=output.datatype, shape=output.shape)
            message.raw_output_contents.append(_raw(output))
    return message


def _raw(output: OutputTensor) -> bytes:
    if output.datatype == "BYTES":
        encoded = [value.encode() for value in output.values]
        return b"".join(struct.pack("<I", len(value)) + value for value in encoded)
    return struct.pack(f"<{len(output.values)}{_CODES[output.datatype]}", *output.values)
