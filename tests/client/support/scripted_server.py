"""A real gRPC server whose streams go as a test wants them to: whole, broken, or never ending."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

CONFIG = text_format.Parse(
    (Path(__file__).parents[3] / "model_repository" / "ensemble" / "config.pbtxt").read_text(),
    model_config_pb2.ModelConfig(),
)
"""Whose tensors it says that it has, but for token ids; its configuration and its index it keeps to itself."""
_MISSING = ("return_token_ids", "token_ids")

Script = Callable[[Any, grpc.ServicerContext], Iterator[Any]]
"""What to answer to a request: responses, or an abort."""


class ScriptedServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[Any] = []
        self.cancelled = threading.Event()

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, grpc's name
        return service_pb2.ModelReadyResponse(ready=request.name == "ensemble")

    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "This protocol is restricted")

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "This protocol is restricted")

    def ModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if request.name != "ensemble":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        message = service_pb2.ModelMetadataResponse(name=request.name, versions=["1"])
        for ours, theirs in ((message.inputs, CONFIG.input), (message.outputs, CONFIG.output)):
            for tensor in (tensor for tensor in theirs if tensor.name not in _MISSING):
                datatype = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
                ours.add(name=tensor.name, datatype=datatype.replace("STRING", "BYTES"), shape=[-1, *tensor.dims])
        return message

    def ModelStreamInfer(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        context.add_callback(self.cancelled.set)
        request = next(requests)
        self.requests.append(request)
        yield from self._script(request, context)


@contextmanager
def serving(script: Script) -> Iterator[tuple[ScriptedServer, str]]:
    """Serve for the length of a test; gives the server and its address."""
    servicer = ScriptedServer(script)
    server = grpc.server(ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


def response(
    text: str, finish_reason: str = "", tokens_in: int = 0, tokens_out: int = 0, responses: int | None = None
) -> Any:
    """One step of an answer as the ensemble sends it; the last one has a finish reason and counts."""
    message = service_pb2.ModelStreamInferResponse()
    _add(message, "text_output", "BYTES", _bytes_tensor(text))
    if finish_reason:
        _add(message, "finish_reason", "BYTES", _bytes_tensor(finish_reason))
        _add(message, "num_input_tokens", "INT32", struct.pack("<i", tokens_in))
        _add(message, "num_output_tokens", "INT32", struct.pack("<i", tokens_out))
        if responses is not None:
            _add(message, "num_responses", "INT32", struct.pack("<i", responses))
    return message


def error(message: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=message)


def _bytes_tensor(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _add(message: Any, name: str, datatype: str, raw: bytes) -> None:
    message.infer_response.outputs.add(name=name, datatype=datatype, shape=[1])
    message.infer_response.raw_output_contents.append(raw)
