"""Raw requests to a running server, by tensor names, and when each of their responses came: over gRPC and HTTP."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from inflight_client._grpc.channel import options
from inflight_client.address import Address
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.grpc.model_config_pb2 import DataType
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from inflight.deploy.repository.configure import committed_repository
from inflight.deploy.repository.model_configs import load

TYPES: dict[str, Any] = {
    tensor.name: triton_to_np_dtype(DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES"))
    for config in load(committed_repository()).values()
    for tensor in config.input
}
"""Of each input of the models."""
TIMEOUT = 60.0


@dataclass(frozen=True)
class TimedResponse:
    """One response: when it came (monotonic seconds), and its outputs; `error` where it holds a sentence instead."""

    at: float
    outputs: Mapping[str, bytes] = field(default_factory=dict)
    error: str | None = None
    request_id: str = ""

    @property
    def text(self) -> str:
        return string(self.outputs["text_output"])

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = np.frombuffer(self.outputs["output_ids"], np.int32).tolist()
        return ids

    @property
    def finish_reason(self) -> str | None:
        raw = self.outputs.get("finish_reason")
        return None if raw is None else string(raw)

    def count(self, name: str) -> int:
        return int(np.frombuffer(self.outputs[name], np.int32)[0])


def string(raw: bytes) -> str:
    """The first element of a BYTES tensor."""
    return raw[4 : 4 + int.from_bytes(raw[:4], "little")].decode()


class GrpcCall:
    """A gRPC stream for one or several requests, read in a separate thread."""

    def __init__(self, stub: Any, requests: Sequence[Any]) -> None:
        self.responses: list[TimedResponse] = []
        self.status: grpc.StatusCode | None = None
        self.ended = threading.Event()
        self._changed = threading.Condition()
        self.sent_at = time.monotonic()
        self._call = stub.ModelStreamInfer(iter(requests))
        threading.Thread(target=self._read, daemon=True).start()

    def cancel(self) -> float:
        """Close the stream, and say when."""
        self._call.cancel()
        return time.monotonic()

    def wait_for(self, count: int, seconds: float = TIMEOUT) -> None:
        """Return once so many responses have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.responses) >= count or self.ended.is_set(), seconds)
        assert came, f"{len(self.responses)} responses within {seconds:.0f} s"
        assert len(self.responses) >= count, f"ended early: {self.responses[-1:]}"

    def finish(self, seconds: float = TIMEOUT) -> list[TimedResponse]:
        """All responses, once the stream has ended."""
        assert self.ended.wait(seconds), f"{len(self.responses)} responses and no end within {seconds:.0f} s"
        return self.responses

    def error(self, seconds: float = TIMEOUT) -> str:
        """The sentence of the only response, once the stream has ended."""
        (response,) = self.finish(seconds)
        assert response.error is not None, response
        return response.error

    def _read(self) -> None:
        try:
            for message in self._call:
                answer = message.infer_response
                outputs = {} if message.error_message else _outputs(answer)
                self._add(TimedResponse(time.monotonic(), outputs, message.error_message or None, answer.id))
        except grpc.RpcError as error:
            self.status = error.code()
            if self.status is not grpc.StatusCode.CANCELLED:
                self._add(TimedResponse(time.monotonic(), error=error.details()))
        finally:
            self.ended.set()
            with self._changed:
                self._changed.notify_all()

    def _add(self, response: TimedResponse) -> None:
        with self._changed:
            self.responses.append(response)
            self._changed.notify_all()


def _outputs(answer: Any) -> dict[str, bytes]:
    """The raw contents of each output of a ModelInferResponse."""
    return {output.name: raw for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}


class GrpcConnection:
    """One connection to a server's gRPC port."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=options(Address.parse(address)))
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def send(self, *requests: Any) -> GrpcCall:
        return GrpcCall(self.stub, requests)

    def text(self, prompt: str | bytes, max_tokens: int, request_id: str = "", **values: Any) -> GrpcCall:
        """A streamed request to the ensemble."""
        values = {"text_input": prompt, "max_tokens": max_tokens, "stream": True, **values}
        return self.send(request("ensemble", values, request_id))

    def tokens(self, prompt: Sequence[int], max_tokens: int, request_id: str = "", **values: Any) -> GrpcCall:
        """A streamed request to the engine's model itself."""
        ids = np.array([prompt], np.int32)
        values = {"input_ids": ids, "input_lengths": len(prompt), "request_output_len": max_tokens, **values}
        return self.send(request("tensorrt_llm", {"streaming": True, **values}, request_id))

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> GrpcConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(model: str, values: Mapping[str, Any], request_id: str = "") -> Any:
    """A ModelInferRequest: texts, numbers as [1, 1] tensors of the type that TYPES names, arrays as they are."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, value in values.items():
        array = value if isinstance(value, np.ndarray) else _array(name, value)
        tensor = message.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype))
        tensor.shape.extend(array.shape)
        is_text = array.dtype == np.object_ and array.size
        message.raw_input_contents.append(serialize_byte_tensor(array).item() if is_text else array.tobytes())
    return message


def _array(name: str, value: Any) -> Any:
    if isinstance(value, str | bytes):
        return np.array([[value.encode() if isinstance(value, str) else value]], np.object_)
    return np.array([[value]], TYPES[name])


@contextmanager
def post(address: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
    """POST JSON (or bytes as they are); the connection is closed on leaving, read to the end or not."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    try:
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        try:
            yield response
        finally:
            response.close()
    finally:
        connection.close()


def generate(address: str, values: Mapping[str, Any] | bytes, model: str = "ensemble") -> tuple[int, Any]:
    """Status and JSON of Triton's generate endpoint."""
    with post(address, f"/v2/models/{model}/generate", values) as response:
        return response.status, json.loads(response.read())


def events(response: http.client.HTTPResponse) -> Iterator[tuple[float, Any]]:
    """The server-sent events of generate_stream, and when each came (monotonic seconds)."""
    for line in response:
        if line.startswith(b"data: "):
            yield time.monotonic(), json.loads(line[6:])


def generate_stream(address: str, values: Mapping[str, Any], model: str = "ensemble") -> list[tuple[float, Any]]:
    """All events of one request, and when each came."""
    with post(address, f"/v2/models/{model}/generate_stream", {"stream": True, **values}) as response:
        return list(events(response))
