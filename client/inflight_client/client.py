"""The client for ordinary, blocking code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inflight_client.errors import InflightError
from inflight_client.protocol import (
    END_SECONDS,
    channel_options,
    delta,
    ended_early,
    error_from_rpc,
    generation,
    inference_request,
)
from inflight_client.results import Delta, Generation
from inflight_client.sampling import Sampling


class Client:
    """Talks gRPC to a server's ensemble. One connection, usable from several threads; close it or use `with`.

    >>> with Client("127.0.0.1:8001") as client:                                # doctest: +SKIP
    ...     print(client.generate("Tell me about tea.", max_tokens=32).text)
    """

    def __init__(self, address: str = "127.0.0.1:8001", model: str = "ensemble") -> None:
        self.address = address
        self.model = model
        self._channel = grpc.insecure_channel(address, options=channel_options(address))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 128,
        sampling: Sampling | None = None,
        timeout: float | None = None,
    ) -> Generation:
        """The whole answer at once. `timeout` is in seconds, for the whole call. Raises InflightError."""
        request = inference_request(self.model, prompt, max_tokens, sampling or Sampling(), stream=False)
        return generation(list(self._deltas(request, timeout)))

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int = 128,
        sampling: Sampling | None = None,
        timeout: float | None = None,
    ) -> Iterator[Delta]:
        """The answer as it comes, one delta a step. Closing the iterator early cancels the request on the server."""
        request = inference_request(self.model, prompt, max_tokens, sampling or Sampling(), stream=True)
        return self._deltas(request, timeout)

    def ready(self, timeout: float = 2.0) -> bool:
        """Whether the server says that the model is ready."""
        request = service_pb2.ModelReadyRequest(name=self.model)
        try:
            return bool(self._stub.ModelReady(request, timeout=timeout).ready)
        except grpc.RpcError:
            return False

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deltas(self, request: Any, timeout: float | None) -> Iterator[Delta]:
        call = self._stub.ModelStreamInfer(iter([request]), timeout=timeout)
        part: Delta | None = None
        try:
            for response in call:
                part = delta(response)
                yield part
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from None
        except InflightError:
            # Triton keeps for good what belongs to a call that is cancelled between its error and its end.
            with contextlib.suppress(grpc.FutureTimeoutError, grpc.RpcError):
                call.result(timeout=END_SECONDS)
            raise
        finally:
            call.cancel()
        if part is None or part.finish_reason is None:
            raise ended_early(self.address)
