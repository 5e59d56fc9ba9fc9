"""The gRPC transport for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from inflight_client._grpc import channel as grpc_channel
from inflight_client._grpc import fork, messages
from inflight_client._grpc.errors import error_from_status
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.error_mapping import client_closed, error_from_message, mismatched_response
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import InferRequest, InferResponse, ModelMetadata, ServerMetadata


class AsyncGrpcTransport:
    """One connection, for the tasks of the event loop that first uses it; see transport.AsyncTransport."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self._where = address.authority
        self._headers = headers
        self._options = grpc_channel.options(address)
        self._credentials = grpc_channel.credentials(address, tls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._open_responses: weakref.WeakSet[AsyncGrpcResponses] = weakref.WeakSet()
        self._closed = False

    async def live(self, deadline: Deadline) -> bool:
        return bool((await self._unary("ServerLive", service_pb2.ServerLiveRequest(), deadline)).live)

    async def ready(self, deadline: Deadline) -> bool:
        return bool((await self._unary("ServerReady", service_pb2.ServerReadyRequest(), deadline)).ready)

    async def model_ready(self, model: str, deadline: Deadline) -> bool:
        try:
            return bool((await self._unary("ModelReady", service_pb2.ModelReadyRequest(name=model), deadline)).ready)
        except InflightError as error:
            if error.code in ("model_not_found", "model_not_ready"):
                return False
            raise

    async def server(self, deadline: Deadline) -> ServerMetadata:
        answer = await self._unary("ServerMetadata", service_pb2.ServerMetadataRequest(), deadline)
        return messages.server_metadata(answer)

    async def index(self, deadline: Deadline) -> list[Model]:
        return messages.models(await self._unary("RepositoryIndex", service_pb2.RepositoryIndexRequest(), deadline))

    async def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        answer = await self._unary("ModelMetadata", service_pb2.ModelMetadataRequest(name=model), deadline)
        return messages.model_metadata(answer)

    async def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        answer = await self._unary("ModelConfig", service_pb2.ModelConfigRequest(name=model), deadline)
        return messages.model_config(answer)

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> AsyncGrpcResponses:
        self._connect()
        if whole.passed:
            raise whole.error()
        call = self._infer(
            messages.infer_request(request),
            timeout=whole.left(),
            metadata=grpc_channel.metadata(self._headers, request.headers),
        )
        responses = AsyncGrpcResponses(call, request.id, whole, first, self.map_error)
        self._open_responses.add(responses)
        return responses

    async def close(self) -> None:
        """Cancel all calls; gRPC's asyncio thread ends too unless it is used elsewhere in the process."""
        self._closed = True
        if self._loop is not None and self._process != os.getpid():
            return  # the parent's
        for responses in tuple(self._open_responses):
            await responses.close()
        channel, self._channel = self._channel, None
        if channel is not None:
            del self._stub, self._infer  # gRPC's thread runs as long as there is a reference to the channel
            await channel.close()

    def map_error(self, error: grpc.aio.AioRpcError, deadline: Deadline) -> InflightError:
        """Map the error of a failed call."""
        if self._closed:
            return client_closed()
        return error_from_status(error.code(), error.details() or "", self._where, deadline)

    def _connect(self) -> None:
        """Create the channel for this event loop, once."""
        if self._closed:
            raise client_closed()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            fork.channel_opening()
            self._loop, self._process = loop, os.getpid()
            self._channel, self._stub, self._infer = grpc_channel.connect(
                grpc.aio, self._where, self._options, self._credentials
            )
            return
        fork.check_process(self._process)
        if self._loop is not loop:
            raise InflightError(
                "the client belongs to another event loop; make one in each loop that uses one", "client_closed"
            )

    async def _unary(self, method: str, request: Any, deadline: Deadline) -> Any:
        self._connect()
        if deadline.passed:
            raise deadline.error()
        try:
            return await getattr(self._stub, method)(
                request, timeout=deadline.left(), metadata=grpc_channel.metadata(self._headers, {})
            )
        except grpc.aio.AioRpcError as error:
            raise self.map_error(error, deadline) from None
        except asyncio.CancelledError:
            if self._closed and not _is_being_cancelled():
                raise client_closed() from None
            raise


class AsyncGrpcResponses:
    """See transport.AsyncResponses. One task at a time reads them; another may close them."""

    def __init__(
        self,
        call: Any,
        request_id: str,
        whole: Deadline,
        first: Deadline,
        failure: Callable[[grpc.aio.AioRpcError, Deadline], InflightError],
    ) -> None:
        self._call: Any = call
        self._id = request_id
        self._whole = whole
        self._first: Deadline | None = first if first.sooner(whole) is first and first.at is not None else None
        self._map_error = failure

    def __aiter__(self) -> AsyncGrpcResponses:
        return self

    async def __anext__(self) -> InferResponse:
        call = self._call
        if call is None:
            raise self._map_error(_cancelled(), self._whole)
        try:
            message = await (call.read() if self._first is None else self._read_within(call, self._first))
        except grpc.aio.AioRpcError as error:
            raise self._map_error(error, self._whole) from None
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            # The call was cancelled, not this task: by `cancel` or `close`, or by closing the connection.
            raise self._map_error(_cancelled(), self._whole) from None
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        if message is None:  # what gRPC returns for bytes that it can't parse
            raise InflightError("a part of the answer can't be read; send the request again", "answer_damaged")
        if message.error_message:
            await self._read_to_end(call)
            raise error_from_message(message.error_message)
        response = message.infer_response
        if response.id and response.id != self._id:
            raise mismatched_response(self._id, response.id)
        return messages.GrpcInferResponse(response)

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        call, self._call = self._call, None
        if call is None or call.done():
            return
        # gRPC keeps a task of a cancelled call until the server closes its side; a pending read waits for that.
        pending = asyncio.gather(call.read(), return_exceptions=True)
        await asyncio.sleep(0)
        call.cancel()
        await pending

    async def _read_within(self, call: Any, deadline: Deadline) -> Any:
        """Read the first response or raise the deadline's error; cancelling the read cancels the call."""
        self._first = None
        try:
            async with asyncio.timeout(deadline.left()):
                return await call.read()
        except TimeoutError:
            raise deadline.error() from None

    async def _read_to_end(self, call: Any) -> None:
        """Read to the end: Triton leaks the state of a call that is cancelled between its error and its end."""
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout(grpc_channel.END_OF_CALL_TIMEOUT):
                while await call.read() is not grpc.aio.EOF:
                    pass


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cancelled() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, nothing, nothing, "the call was cancelled")
