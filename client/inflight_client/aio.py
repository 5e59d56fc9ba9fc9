"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

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


class AsyncClient:
    """Talks gRPC to a server's ensemble; as many calls at once as you like. Close it, or use `async with`."""

    def __init__(self, address: str = "127.0.0.1:8001", model: str = "ensemble") -> None:
        self.address = address
        self.model = model
        self._channel = grpc.aio.insecure_channel(address, options=channel_options(address))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 128,
        sampling: Sampling | None = None,
        timeout: float | None = None,
    ) -> Generation:
        """The whole answer at once. `timeout` is in seconds, for the whole call. Raises InflightError."""
        request = inference_request(self.model, prompt, max_tokens, sampling or Sampling(), stream=False)
        return generation([part async for part in self._deltas(request, timeout)])

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int = 128,
        sampling: Sampling | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Delta]:
        """The answer as it comes, one delta a step. Closing the iterator early cancels the request on the server."""
        request = inference_request(self.model, prompt, max_tokens, sampling or Sampling(), stream=True)
        return self._deltas(request, timeout)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _deltas(self, request: Any, timeout: float | None) -> AsyncIterator[Delta]:
        async def once() -> AsyncIterator[Any]:
            yield request

        call = self._stub.ModelStreamInfer(once(), timeout=timeout)
        part: Delta | None = None
        try:
            async for response in call:
                part = delta(response)
                yield part
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self.address) from None
        except InflightError:
            # Triton keeps for good what belongs to a call that is cancelled between its error and its end.
            with contextlib.suppress(asyncio.TimeoutError, grpc.aio.AioRpcError):
                await asyncio.wait_for(_read_on(call), END_SECONDS)
            raise
        finally:
            call.cancel()
        if part is None or part.finish_reason is None:
            raise ended_early(self.address)


async def _read_on(call: Any) -> None:
    async for _ in call:
        pass
