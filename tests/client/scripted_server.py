"""A real gRPC server whose streams go as a test wants them to: whole, broken, or never ending."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

Script = Callable[[Any, grpc.ServicerContext], Iterator[Any]]
"""What to answer to a request: responses, or an abort."""


class ScriptedServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[Any] = []
        self.cancelled = threading.Event()

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, grpc's name
        return service_pb2.ModelReadyResponse(ready=request.name == "ensemble")

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


def response(text: str, finish_reason: str = "", tokens_in: int = 0, tokens_out: int = 0) -> Any:
    """One step of an answer as the ensemble sends it; the last one has a finish reason and counts."""
    message = service_pb2.ModelStreamInferResponse()
    _add(message, "text_output", "BYTES", _bytes_tensor(text))
    if finish_reason:
        _add(message, "finish_reason", "BYTES", _bytes_tensor(finish_reason))
        _add(message, "num_input_tokens", "INT32", struct.pack("<i", tokens_in))
        _add(message, "num_output_tokens", "INT32", struct.pack("<i", tokens_out))
    return message


def error(message: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=message)


def _bytes_tensor(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _add(message: Any, name: str, datatype: str, raw: bytes) -> None:
    message.infer_response.outputs.add(name=name, datatype=datatype, shape=[1])
    message.infer_response.raw_output_contents.append(raw)
